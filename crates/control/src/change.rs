//! Changes of one VNI while the daemon runs.
//!
//! When the configuration is read again, it replaces all such changes except detached VNIs: a
//! SIGHUP for another reason must not take over a VNI that was detached by hand.

use path::{Bins, Entropy, Policy, SettingsError, SourcePortRange};
use wire::Vni;

use crate::settings::Settings;

/// A change of one VNI while the daemon runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Changes the source port policy. Absent fields keep their values.
    Policy {
        /// The VNI.
        vni: Vni,
        /// The new policy.
        policy: Option<Policy>,
        /// Number of ports of `qp-bins`.
        bins: Option<Bins>,
        /// Outer source ports of `qp-hash`, `qp-bins` and `qp-pin`.
        source_ports: Option<SourcePortRange>,
    },
    /// Take over the VNI, even if the configuration excludes it. Its netdev may still be
    /// ineligible.
    Attach(Vni),
    /// Give the VNI back to the kernel.
    Detach(Vni),
}

impl Change {
    /// The VNI that changes.
    #[must_use]
    pub const fn vni(&self) -> Vni {
        match self {
            Self::Policy { vni, .. } | Self::Attach(vni) | Self::Detach(vni) => *vni,
        }
    }
}

impl Change {
    /// Applies the change to the settings.
    ///
    /// # Errors
    /// If the policy's settings contradict each other. Nothing changes then.
    pub(crate) fn apply(&self, settings: &mut Settings) -> Result<(), SettingsError> {
        match *self {
            Self::Policy { vni, policy, bins, source_ports } => {
                let mut of_vni = settings.of(vni).clone();
                of_vni.policy = policy.unwrap_or(of_vni.policy);
                of_vni.bins = bins.unwrap_or(of_vni.bins);
                of_vni.source_ports = source_ports.unwrap_or(of_vni.source_ports);
                Entropy::new(path::Settings {
                    policy: of_vni.policy,
                    bins: of_vni.bins,
                    range: of_vni.source_ports,
                    ..path::Settings::default()
                })?;
                settings.vnis.insert(vni, of_vni);
            }
            Self::Attach(vni) => {
                settings.detached.remove(&vni);
                settings.exclude.remove(&vni);
                if let Some(include) = &mut settings.include {
                    include.insert(vni);
                }
            }
            Self::Detach(vni) => {
                settings.detached.insert(vni);
            }
        }
        Ok(())
    }
}
