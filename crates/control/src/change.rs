//! Changes of one VNI while the daemon runs.
//!
//! When the configuration is read again, it replaces all such changes except detached VNIs: a
//! SIGHUP for another reason must not take over a VNI that was detached by hand.

use path::{Bins, Entropy, Policy, SettingsError, SourcePortRange};
use wire::Vni;

use crate::settings::Settings;
use crate::state::State;

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
        /// Outer source ports of `qp-hash` and `qp-bins`.
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

impl State {
    /// Changes the settings, which the next [`State::build`] applies.
    ///
    /// # Errors
    /// If the policy's settings contradict each other. Nothing changes then.
    pub fn change(&mut self, change: &Change) -> Result<(), SettingsError> {
        self.settings.change(change)?;
        self.dirty.overlays.extend(self.links.vxlans_of(change.vni().get()));
        // A netdev that serves many VNIs may serve this one.
        let serves_many = |ifindex: &u32| {
            self.links.vxlan(*ifindex).is_some_and(|vxlan| vxlan.external || vxlan.vni_filter)
        };
        self.dirty.overlays.extend(self.links.vxlans().filter(serves_many));
        Ok(())
    }
}

impl Settings {
    fn change(&mut self, change: &Change) -> Result<(), SettingsError> {
        match *change {
            Change::Policy { vni, policy, bins, source_ports } => {
                let mut settings = self.of(vni).clone();
                settings.policy = policy.unwrap_or(settings.policy);
                settings.bins = bins.unwrap_or(settings.bins);
                settings.source_ports = source_ports.unwrap_or(settings.source_ports);
                Entropy::new(path::Settings {
                    policy: settings.policy,
                    bins: settings.bins,
                    range: settings.source_ports,
                    ..path::Settings::default()
                })?;
                self.vnis.insert(vni, settings);
            }
            Change::Attach(vni) => {
                self.detached.remove(&vni);
                self.exclude.remove(&vni);
                if let Some(include) = &mut self.include {
                    include.insert(vni);
                }
            }
            Change::Detach(vni) => {
                self.detached.insert(vni);
            }
        }
        Ok(())
    }
}
