"""Messages and the stub of the API, generated from ``proto/vtepd/v1/vtepd.proto``."""
