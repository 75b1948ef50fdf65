"""The offline model: speaks Anthropic's, OpenAI's and Google's protocols without a model behind it, and fails on request."""
