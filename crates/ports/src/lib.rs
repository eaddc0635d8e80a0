//! AF_PACKET and in-memory ports, splices and steering programs: the only room with unsafe code.
