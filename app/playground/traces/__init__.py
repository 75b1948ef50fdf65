"""The local stand-in for Langfuse, with a page of its own."""
