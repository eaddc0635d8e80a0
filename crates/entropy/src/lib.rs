//! Flow keys, queue pairs and path policies: who picks the outer UDP source port.
