"""The HTTP server: wire schemas, streaming, limits, and the supervised engine process behind them."""
