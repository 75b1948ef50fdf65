"""Everything of `app.runs` that tests and benches import, so that moving a module touches this file alone."""

from app.runs.agent_process import MAX_LINE_BYTES, run_directory
from app.runs.agent_tail import MAX_RECORD_CHARS, RecordLines
from app.runs.approvals import ApprovalDesk, Press
from app.runs.attempt import Asker, Attempt
from app.runs.broker import (
    Before,
    BrokerEndpoint,
    GrantHooks,
    ModelBroker,
    ModelGrant,
    NotApprovedError,
    RepositoryGrant,
    RunApprovals,
    StillWaitingError,
    git_token,
    slug_of,
)
from app.runs.budget import (
    JUDGEMENTS,
    KEPT_DAYS,
    MICRO,
    REFRESH_S,
    AskLeave,
    BudgetRefusal,
    Budgets,
    CallFigures,
    Ledger,
    Price,
    Prices,
    Spending,
    SpendingStore,
    SpentCall,
    check_cost,
    render_money,
    to_dollars,
    to_micro,
)
from app.runs.commands import (
    MAX_TOLD_BYTES,
    ChannelMemory,
    carry_out,
    effective_settings,
    find_command_problem,
    find_instructions_problem,
)
from app.runs.environment import (
    SAVING_S,
    AddedFile,
    Additions,
    AgentEnvironment,
    AgentSettings,
    FilesFact,
    NetworkFact,
    RepositoryFact,
    RunFacts,
    base_prompt,
    render_prompt,
)
from app.runs.executor import AgentRunner
from app.runs.files import FileWatch
from app.runs.follow_ups import (
    INSTRUCTION,
    Decision,
    FollowUpFilter,
    UnreadThreadError,
    find_sure,
    is_closing,
    is_two_party,
    render_transcript,
)
from app.runs.history import (
    ADDRESSED,
    CUT_OFF,
    FAILED_UNANSWERED,
    INTERRUPTED,
    INTERRUPTS,
    LEFT_OUT,
    MEANWHILE,
    NOT_ADDRESSED,
    STOPPED_UNANSWERED,
    Conversation,
    FileExchange,
    Judge,
    NoJudge,
    ThreadReader,
    ThreadView,
    UnreadableFileError,
    Verdict,
    build_messages,
)
from app.runs.intake import MUTED, UNMUTED, Intake, Pick, RetryIntent, Revision
from app.runs.model import (
    UNFINISHED_STATES,
    WAITING_STATES,
    Changes,
    ChannelChange,
    ChannelNote,
    ChannelNoteStore,
    Checkpoint,
    Clock,
    Delivery,
    GrantNews,
    ModelCall,
    Outcome,
    PlannedStep,
    ProcessId,
    Progress,
    QueuePosition,
    ReportedCall,
    Resumption,
    Run,
    RunFileKind,
    RunState,
    SharedFile,
    StepState,
    SystemClock,
    ThreadMessage,
    ToolCall,
    Usage,
)
from app.runs.options import (
    SANDBOX_WORDS,
    DefaultChanges,
    Defaults,
    EffectiveSetting,
    MessageOptions,
    RunOptions,
    Scope,
    SettingsCommand,
    parse_options,
    unknown_word,
)
from app.runs.policy import (
    MAX_ATTEMPTS,
    MAX_PLACE_ATTEMPTS,
    FollowUps,
    RunPolicy,
    RunTimings,
    find_invalid,
    find_refusal,
    may_stop,
)
from app.runs.ports import (
    Advance,
    AgainIn,
    DefaultStore,
    Dispatcher,
    Done,
    LiveReply,
    OwnKeyStore,
    ReplySink,
    RunChanges,
    RunCost,
    RunFiles,
    RunHandlers,
    RunPorts,
    RunStore,
    RunTrace,
    StepKind,
    StoppingError,
    Tracer,
    TraceStep,
)
from app.runs.progress import (
    HEAD_CHARS,
    MAX_BYTES,
    MAX_CHARS,
    Display,
    LiveLogs,
    ProgressTracker,
    Transcript,
    last_lines,
)
from app.runs.repository.checkout import (
    Author,
    Checkout,
    CodeHost,
    GitContext,
    NothingToProposeError,
    Proposal,
    Repositories,
)
from app.runs.repository.names import (
    ThreadRepository,
    canonical_name,
    render_proposal,
    repository_key,
    title_of,
    why_not_pushed,
)
from app.runs.repository.preparation import Ground, PreparationError, Preparations
from app.runs.repository.tasks import RepositoryPolicy
from app.runs.repository.watch import (
    BusyHostError,
    Fix,
    PullGoneError,
    PullRequestWatch,
)
from app.runs.request import (
    Addressing,
    AttachedFile,
    MemoryCommand,
    MemoryVerb,
    MessageContent,
    RunId,
    RunRequest,
    Surface,
    Thread,
    bare_word,
    parse_memory_command,
    run_id_for,
)
from app.runs.runners import OpenRuntime, ProviderRuntime, Runners, WhyNot, always_usable
from app.runs.sandboxes import RUN_LABEL, OpenProvider, SessionLocks, agent_paths
from app.runs.selection import (
    Catalog,
    CatalogAgent,
    Choice,
    Chosen,
    RepositoryRule,
    SelectionContext,
    Source,
    channel_change,
    choose,
    find_problem,
    find_repositories,
)
from app.runs.service import HEARD_BEFORE, RunService
from app.runs.session import (
    AgentMemory,
    NameTakenError,
    Session,
    SessionChanges,
    SessionId,
    SessionStatus,
    SessionStore,
    ThreadStore,
    session_id_for,
)
from app.runs.stop import POLL_INTERVAL_S, AttemptTime, StopRequest, StopSignals
from app.runs.warm_pool import FAILURES, MAX_WAIT_S, PoolFigures, WarmPool
from app.runs.workspace import UNSAVED, Workspaces
