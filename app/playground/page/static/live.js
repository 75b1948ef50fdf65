// Live updates: one EventSource that comes back after every break; at each start everything is loaded anew.

const RETRY_MS = 2000;

export function listen({ onItem, onRefresh, onState }) {
  function connect() {
    const source = new EventSource("/ui/events");
    source.onmessage = (event) => {
      const item = JSON.parse(event.data);
      if (item.kind === "hello") {
        // From here on nothing is missed; what happened before (also before the first connection) is loaded now.
        onState("");
        onRefresh();
      } else if (item.kind === "reset") {
        onRefresh();
      } else {
        onItem(item);
      }
    };
    source.onerror = () => {
      onState("Reconnecting");
      // The browser retries after a cut, but gives up after a refusal.
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, RETRY_MS);
    };
  }

  connect();
}
