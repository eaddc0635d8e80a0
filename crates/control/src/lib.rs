//! Sources to tables to snapshot: resync, sweep, liveness.
