"""The HTTP server, background jobs, the wire format, exports."""
