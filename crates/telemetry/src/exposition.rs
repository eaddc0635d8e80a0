//! The OpenMetrics text: the name, help text and labels of every metric.

mod family;
mod frames;
mod probing;

use std::fmt;

use pipeline::Counters;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;

use crate::view::{PortFrames, View};
use family::Families;

/// All metrics as text.
///
/// # Errors
/// Formatting into a string does not fail in practice.
pub fn render(counters: &std::sync::Arc<Counters>, view: View) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Everything {
        counters: std::sync::Arc::clone(counters),
        view,
    }));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Everything {
    counters: std::sync::Arc<Counters>,
    view: View,
}

impl Collector for Everything {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let out = &mut Families(encoder);
        self.daemon(out)?;
        self.vnis(out)?;
        self.vni_traffic(out)?;
        self.paths(out)?;
        self.peers(out)?;
        self.learning(out)?;
        self.bypass(out)?;
        probing::encode(self.view.probing.as_ref(), out)?;
        self.resequenced(out)?;
        self.frames(out)
    }
}

impl Everything {
    fn daemon(&self, out: &mut Families<'_>) -> fmt::Result {
        let view = &self.view;
        out.gauge(
            "vtepd_ready",
            "1 while BPF programs redirect or forward frames",
            u64::from(view.ready),
        )?;
        out.gauge(
            "vtepd_snapshot_generation",
            "How often the forwarding tables were published",
            view.generation,
        )?;
        out.gauge(
            "vtepd_configuration_generation",
            "How often a configuration was read",
            view.configuration,
        )?;
        let sources = view.sources.iter().map(|source| {
            (vec![("source", source.name.to_owned()), ("state", source.state.clone())], 1)
        });
        out.gauges(
            "vtepd_source_state",
            "State of each source of routes and addresses; always 1",
            sources,
        )?;
        let swept = view
            .sources
            .iter()
            .map(|source| (vec![("source", source.name.to_owned())], source.swept));
        out.counters(
            "vtepd_swept_entries",
            "Entries removed because a source did not confirm them in a dump or replay",
            swept,
        )?;
        out.counter(
            "vtepd_netlink_overruns",
            "How often netlink messages were lost, so that everything was dumped again",
            view.overruns,
        )?;
        out.counter(
            "vtepd_control_stalls",
            "How often the control task hung, so that the kernel forwarded",
            view.control_stalls,
        )?;
        out.counter(
            "vtepd_fpm_refused_connections",
            "FPM connections that were refused because their user may not connect",
            view.fpm_refused,
        )?;
        out.counter(
            "vtepd_log_lines_lost",
            "Log lines lost because the log was not read in time",
            view.log_lines_lost,
        )?;
        let left = view.left.iter().map(|left| {
            let labels = vec![
                ("netdev", left.netdev.clone()),
                ("vni", left.vni.clone()),
                ("reason", left.reason.to_owned()),
                ("policy", left.policy.clone()),
            ];
            (labels, 1)
        });
        out.gauges(
            "vtepd_left_to_kernel",
            "vxlan netdevs that stay with the kernel, and why; always 1",
            left,
        )
    }

    fn vnis(&self, out: &mut Families<'_>) -> fmt::Result {
        let vnis = &self.view.vnis;
        let label = |vni: wire::Vni| ("vni", vni.to_string());
        let datapaths = vnis.iter().map(|v| (v.vni.to_string(), &v.netdev, &v.policy, v.datapath));
        let left = self
            .view
            .left
            .iter()
            .map(|left| (left.vni.clone(), &left.netdev, &left.policy, "kernel"));
        let datapath = |(vni, netdev, policy, datapath): (_, &String, &String, &str)| {
            let labels = vec![
                ("vni", vni),
                ("netdev", netdev.clone()),
                ("datapath", datapath.to_owned()),
                ("policy", policy.clone()),
            ];
            (labels, 1)
        };
        out.gauges(
            "vtepd_vni_datapath",
            "Who forwards each VNI, and its source port policy; always 1",
            datapaths.chain(left).map(datapath),
        )?;
        let information = vnis.iter().map(|v| {
            (vec![label(v.vni), ("netdev", v.netdev.clone()), ("policy", v.policy.clone())], 1)
        });
        out.gauges(
            "vtepd_vni_info",
            "VNIs taken over, with netdev and policy; always 1",
            information,
        )?;
        let macs = vnis.iter().map(|v| (vec![label(v.vni)], v.remote_macs as u64));
        out.gauges("vtepd_vni_remote_macs", "MAC addresses known behind remote VTEPs", macs)?;
        let flood = vnis.iter().map(|v| (vec![label(v.vni)], v.flood_vteps as u64));
        out.gauges("vtepd_vni_flood_vteps", "VTEPs in the flood list", flood)
    }

    fn vni_traffic(&self, out: &mut Families<'_>) -> fmt::Result {
        let vnis = &self.view.vnis;
        let label = |vni: wire::Vni| ("vni", vni.to_string());
        let each = |read: fn(&pipeline::counters::VniCounters) -> [u64; 2]| {
            vnis.iter()
                .filter_map(move |v| Some((v.vni, read(self.counters.vni(v.slot)?))))
                .flat_map(move |(vni, [encapsulated, decapsulated])| {
                    [("encapsulated", encapsulated), ("decapsulated", decapsulated)].map(
                        |(direction, n)| (vec![label(vni), ("direction", direction.to_owned())], n),
                    )
                })
        };
        let frames = each(|c| [c.encapsulated.frames.get(), c.decapsulated.frames.get()]);
        out.counters(
            "vtepd_vni_frames",
            "Inner frames forwarded; each copy and segment counts",
            frames,
        )?;
        let bytes = each(|c| [c.encapsulated.bytes.get(), c.decapsulated.bytes.get()]);
        out.counters("vtepd_vni_bytes", "Bytes of the inner frames forwarded", bytes)?;
        let one = |read: fn(&pipeline::counters::VniCounters) -> u64| {
            vnis.iter()
                .filter_map(move |v| Some((vec![label(v.vni)], read(self.counters.vni(v.slot)?))))
        };
        out.counters(
            "vtepd_vni_switched_frames",
            "Frames switched between access ports (standalone)",
            one(|c| c.switched.frames.get()),
        )?;
        out.counters(
            "vtepd_vni_flooded_frames",
            "Frames sent to the flood list",
            one(|c| c.flooded.get()),
        )?;
        let unknown = one(|c| c.unknown_vtep.get());
        out.counters(
            "vtepd_vni_unknown_vtep_frames",
            "Frames from VTEPs that are in no table",
            unknown,
        )?;
        out.counters(
            "vtepd_vni_dropped_frames",
            "Frames dropped, for any reason",
            one(|c| c.dropped.get()),
        )
    }

    fn paths(&self, out: &mut Families<'_>) -> fmt::Result {
        let each = |read: fn(&pipeline::counters::Traffic) -> u64| {
            self.view.paths.iter().filter_map(move |path| {
                let labels =
                    vec![("uplink", path.uplink.clone()), ("gateway", path.gateway.to_string())];
                Some((labels, read(self.counters.path(path.path)?)))
            })
        };
        out.counters(
            "vtepd_path_frames",
            "Outer frames sent to each next hop",
            each(|t| t.frames.get()),
        )?;
        out.counters(
            "vtepd_path_bytes",
            "Bytes of the outer frames sent to each next hop",
            each(|t| t.bytes.get()),
        )
    }

    fn peers(&self, out: &mut Families<'_>) -> fmt::Result {
        let each = |read: fn(&pipeline::counters::Traffic) -> u64| {
            self.view.peers.iter().flat_map(move |&(id, vtep)| {
                let counted = self.counters.peer(id);
                let traffic =
                    counted.map(|peer| [("sent", &peer.sent), ("received", &peer.received)]);
                traffic.into_iter().flatten().map(move |(direction, traffic)| {
                    let labels =
                        vec![("vtep", vtep.to_string()), ("direction", direction.to_owned())];
                    (labels, read(traffic))
                })
            })
        };
        out.counters(
            "vtepd_peer_frames",
            "Inner frames sent to each VTEP and received from it",
            each(|t| t.frames.get()),
        )?;
        out.counters(
            "vtepd_peer_bytes",
            "Bytes of the inner frames sent to each VTEP and received from it",
            each(|t| t.bytes.get()),
        )?;
        out.gauge(
            "vtepd_default_route_vteps",
            "VTEPs that only the default route leads to",
            self.view.by_default as u64,
        )?;
        out.counter(
            "vtepd_default_route_frames",
            "Inner frames sent to VTEPs that only the default route leads to",
            self.counters.by_default.get(),
        )
    }

    fn learning(&self, out: &mut Families<'_>) -> fmt::Result {
        let row =
            |name| move |(label, n): &(&'static str, u64)| (vec![(name, (*label).to_owned())], *n);
        out.counters(
            "vtepd_learned_addresses",
            "MAC addresses learned from received frames and written into the kernel's FDB",
            self.view.learned.iter().map(row("change")),
        )?;
        out.counters(
            "vtepd_mac_moves",
            "Moves of MAC addresses between VTEPs, followed or already superseded",
            self.view.moves.iter().map(row("moves")),
        )?;
        out.counter(
            "vtepd_flapping_addresses",
            "How often a MAC address started to move too often",
            self.view.flapping,
        )?;
        let limited = ("rate", self.counters.learn_limited.get());
        out.counters(
            "vtepd_not_learned_addresses",
            "Reports of MAC addresses that were not written into the kernel's FDB",
            self.view.not_learned.iter().chain(std::iter::once(&limited)).map(row("reason")),
        )
    }

    fn bypass(&self, out: &mut Families<'_>) -> fmt::Result {
        let ports = self.view.ports.iter().map(|port| {
            let labels = vec![
                ("port", port.port.clone()),
                ("vni", port.vni.to_string()),
                ("reason", port.reason.clone().unwrap_or_default()),
            ];
            (labels, u64::from(port.reason.is_none()))
        });
        out.gauges(
            "vtepd_port_bypass",
            "1 for bridge ports with the bridge bypass; 0 for others, with the reason",
            ports,
        )?;
        let [known, waiting] = self.view.bypass_addresses;
        let rows = [("known", known), ("no_room", waiting)]
            .map(|(state, n)| (vec![("state", state.to_owned())], n as u64));
        out.gauges(
            "vtepd_bypass_addresses",
            "MAC addresses in the map of the bridge bypass",
            rows,
        )?;
        out.counter(
            "vtepd_bypass_no_room",
            "MAC addresses that did not fit into the map of the bridge bypass",
            self.view.bypass_no_room,
        )?;
        let frames = self.view.ports.iter().filter_map(|port| Some((port, port.frames?)));
        let frames = frames.flat_map(|(port, frames)| {
            let PortFrames { bypass, refreshed, passed, stalled } = frames;
            [("bypass", bypass), ("refreshed", refreshed), ("passed", passed), ("stalled", stalled)]
                .map(|(way, n)| {
                    let labels = [("port", port.port.as_str()), ("way", way)];
                    (labels.map(|(name, value)| (name, value.to_owned())).to_vec(), n)
                })
        });
        out.counters(
            "vtepd_port_frames",
            "Frames from hosts on ports with the bridge bypass, by their path",
            frames,
        )
    }

    fn resequenced(&self, out: &mut Families<'_>) -> fmt::Result {
        let order = &self.counters.resequenced;
        let resequenced = [
            ("waited", order.waited.get()),
            ("gap_by_timer", order.by_timer.get()),
            ("gap_by_bound", order.by_bound.get()),
            ("gap_by_share", order.by_share.get()),
            ("crowded", order.crowded.get()),
        ];
        out.counters(
            "vtepd_resequenced_frames",
            "Frames of sprayed queue pairs that waited for the ones before them, and gaps that did \
             not close",
            resequenced.map(|(what, n)| (vec![("what", what.to_owned())], n)),
        )?;
        out.gauge(
            "vtepd_resequencing_longest_wait_microseconds",
            "The longest time that such a frame waited",
            order.longest_wait.get() / 1000,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use frame::DropReason;

    use super::*;
    use crate::view::VniView;

    #[test]
    fn counters_of_a_vni_show_under_its_number() {
        let counters = Arc::new(Counters::new());
        counters.vni(7).unwrap().encapsulated.add(3, 300);
        counters.drop_frames(DropReason::NoRoute, 7, 2);
        let vni = VniView {
            slot: 7,
            vni: wire::Vni::try_from(10010).unwrap(),
            netdev: "vx10010".to_owned(),
            policy: "qp-hash".to_owned(),
            datapath: "offload",
            remote_macs: 1,
            flood_vteps: 2,
        };
        let text =
            render(&counters, View { vnis: vec![vni], ready: true, ..View::default() }).unwrap();
        for line in [
            "vtepd_ready 1",
            "vtepd_vni_datapath{vni=\"10010\",netdev=\"vx10010\",datapath=\"offload\",\
             policy=\"qp-hash\"} 1",
            "vtepd_vni_info{vni=\"10010\",netdev=\"vx10010\",policy=\"qp-hash\"} 1",
            "vtepd_vni_frames_total{vni=\"10010\",direction=\"encapsulated\"} 3",
            "vtepd_vni_bytes_total{vni=\"10010\",direction=\"encapsulated\"} 300",
            "vtepd_vni_dropped_frames_total{vni=\"10010\"} 2",
            "vtepd_dropped_frames_total{reason=\"no_route\"} 2",
            "# EOF",
        ] {
            assert!(text.lines().any(|l| l == line), "no line '{line}' in\n{text}");
        }
    }
}
