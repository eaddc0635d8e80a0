//! The kernel's queues of received frames, which the tests of all network namespaces share.

const FILE: &str = "/proc/sys/net/core/netdev_max_backlog";
/// Frames. The kernel's default of 1000 is filled by the TCP streams of one test, so that frames of
/// other tests are lost.
const FRAMES: u32 = 20_000;

/// Restores the machine's setting when it is dropped.
#[derive(Debug)]
pub(crate) struct Backlog(Option<String>);

impl Backlog {
    /// Gives each CPU's queue room for the tests that run at once. Without the privilege, it stays as
    /// it is.
    pub(crate) fn raise() -> Self {
        let before = std::fs::read_to_string(FILE).ok();
        let is_little = |text: &String| text.trim().parse::<u32>().is_ok_and(|now| now < FRAMES);
        Self(
            before
                .filter(|text| is_little(text) && std::fs::write(FILE, FRAMES.to_string()).is_ok()),
        )
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        if let Some(before) = &self.0
            && let Err(error) = std::fs::write(FILE, before)
        {
            eprintln!("suite: {FILE} cannot be restored to {}: {error}", before.trim());
        }
    }
}
