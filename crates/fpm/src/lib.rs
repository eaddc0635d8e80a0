//! zebra's FPM stream: framing, netlink and protobuf payloads, and the server.
