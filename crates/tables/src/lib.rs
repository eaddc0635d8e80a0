//! FDB, flood lists, routes and next hops, and the immutable snapshot that workers forward by.
