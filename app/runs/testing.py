"""Everything of `app.runs` that tests and benches import, so that moving a module touches this file alone."""

from app.runs.agent_process import MAX_LINE_BYTES
from app.runs.agent_session import run_directory
from app.runs.agent_tail import MAX_RECORD_CHARS, RecordLines
from app.runs.attempt import Asker, Attempt, AttemptTime, Display, ProgressTracker
from app.runs.budget import (
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
    RunCost,
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
    render_prompt,
)
from app.runs.executor import AgentRunner
from app.runs.history import (
    FAILED_UNANSWERED,
    LEFT_OUT,
    STOPPED_UNANSWERED,
    Conversation,
    FileExchange,
    ThreadReader,
    ThreadView,
    UnreadableFileError,
    build_messages,
)
from app.runs.intake import Intake, Pick, RetryIntent, Revision
from app.runs.maintenance import (
    OVERDUE_GRACE_S,
    RETENTION_INTERVAL_S,
    START_DELAY_S,
    Retention,
    Watchdog,
    maintain_runtime,
)
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
    Progress,
    QueuePosition,
    ReportedCall,
    Resumption,
    Run,
    RunFileKind,
    RunState,
    SharedFile,
    SystemClock,
    ThreadMessage,
    Usage,
)
from app.runs.options import (
    SANDBOX_WORDS,
    DefaultChanges,
    Defaults,
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
    RunPolicy,
    RunTimings,
    find_invalid,
    find_refusal,
    may_stop,
)
from app.runs.ports import (
    Advance,
    AgainIn,
    BrokerEndpoint,
    CodeHost,
    DefaultStore,
    Dispatcher,
    Done,
    GrantHooks,
    LiveReply,
    ModelBroker,
    ModelGrant,
    NothingToProposeError,
    OwnKeyStore,
    Proposal,
    ReplySink,
    RepositoryGrant,
    RunChanges,
    RunFiles,
    RunHandlers,
    RunPorts,
    RunStore,
    RunTrace,
    StepKind,
    Tracer,
    TraceStep,
)
from app.runs.repository import (
    Checkout,
    GitContext,
    Repositories,
    RepositoryPolicy,
    ThreadRepository,
    canonical_name,
    git_token,
    repository_key,
    title_of,
    why_not_pushed,
)
from app.runs.request import (
    AttachedFile,
    MemoryCommand,
    MemoryVerb,
    MessageContent,
    RunId,
    RunRequest,
    Surface,
    Thread,
    parse_memory_command,
    run_id_for,
)
from app.runs.runners import OpenRuntime, ProviderRuntime, Runners
from app.runs.sandboxes import SessionLocks, agent_paths
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
from app.runs.service import RunService
from app.runs.session import (
    AgentMemory,
    NameTakenError,
    Session,
    SessionChanges,
    SessionId,
    SessionStatus,
    SessionStore,
    session_id_for,
)
from app.runs.stop import POLL_INTERVAL_S, StopRequest, StopSignals
from app.runs.transcript import HEAD_CHARS, MAX_BYTES, MAX_CHARS, LiveLogs, Transcript, last_lines
from app.runs.warm_pool import FAILURES, MAX_WAIT_S, PoolFigures, WarmPool
from app.runs.workspace import UNSAVED, OpenProvider, Workspaces
