// Live updates: one EventSource that reconnects by itself; after every break everything is loaded anew.

export function listen({ onItem, onRefresh, onState }) {
  let broken = false;
  const source = new EventSource("/ui/events");
  source.onmessage = (event) => {
    const item = JSON.parse(event.data);
    if (item.kind === "hello") {
      onState("");
      if (broken) onRefresh();
      broken = false;
    } else if (item.kind === "reset") {
      onRefresh();
    } else {
      onItem(item);
    }
  };
  source.onerror = () => {
    broken = true;
    onState("Reconnecting");
    if (source.readyState === EventSource.CLOSED) {
      // A refusal (not a cut) ends an EventSource for good: start another.
      setTimeout(() => listen({ onItem, onRefresh: () => onRefresh(), onState }), 2000);
      onRefreshSoon(onRefresh);
    }
  };
  window.addEventListener("pagehide", () => source.close(), { once: true });
}

function onRefreshSoon(onRefresh) {
  setTimeout(() => onRefresh(), 3000);
}
