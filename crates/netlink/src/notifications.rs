//! Tells that objects of one kind have changed in a network namespace, without reading the changes.
//!
//! The reader dumps again whatever may have changed, so lost or merged notifications do no harm.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::error::Error;
use crate::events::drain;
use crate::socket::{Socket, failed};

/// The kind of the objects: a multicast group of rtnetlink
/// (`enum rtnetlink_groups` in `include/uapi/linux/rtnetlink.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum NotificationKind {
    /// `RTNLGRP_LINK`: interfaces and their carriers.
    Links = 1,
    /// `RTNLGRP_NEIGH`: neighbours and entries of forwarding databases.
    Neighbours = 3,
    /// `RTNLGRP_IPV4_ROUTE`.
    Ipv4Routes = 7,
    /// `RTNLGRP_IPV6_ROUTE`.
    Ipv6Routes = 11,
}

/// A socket that becomes readable when an object of its kind changes.
#[derive(Debug)]
pub struct Notifications(Socket);

impl Notifications {
    /// Starts to watch the calling thread's network namespace.
    ///
    /// # Errors
    /// When the socket cannot be opened.
    pub fn open(kind: NotificationKind) -> Result<Self, Error> {
        let socket = Socket::open(None)?;
        socket.set_non_blocking()?;
        socket.join(kind as u32)?;
        Ok(Self(socket))
    }

    /// Whether something may have changed since the last call. Does not wait.
    ///
    /// # Errors
    /// When the socket fails. Lost notifications are not an error.
    pub fn changed(&self) -> Result<bool, Error> {
        // The content is not used; the kernel truncates it.
        match drain(&self.0, &mut Vec::with_capacity(16), |changed, _| *changed = true) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            changed => changed.map_err(failed("receive notifications")),
        }
    }
}

impl AsFd for Notifications {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
