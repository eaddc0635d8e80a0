//! How even the load is, compared with another dataplane.

use super::words::{Grade, ROUTING, Verdict, beyond_noise, change, title, within_noise};
use crate::file::KERNEL;
use crate::role::Role;
use crate::summary::{Row, Summary};

/// The policy that knows no queue pairs: what kernel VXLAN would do with a route for each frame.
pub(super) const PLAIN: &str = "five-tuple";

/// The tiers of a sentence.
pub(super) const ROLES: [Role; 2] = [Role::Leaf, Role::Spine];

/// The difference to another dataplane, at the leaf and between the spines. Inner source ports about
/// which the same can be said share a sentence, for each fabric.
pub(super) fn gains(label: &str, base: &str, rows: &[&Row], summary: &Summary) -> Vec<Verdict> {
    let mut groups: Vec<(Vec<&Row>, Vec<Option<Grade>>)> = Vec::new();
    let mut places = Vec::new();
    for row in rows {
        let place = (row.fabric.as_str(), row.point.inner_port);
        if places.contains(&place) {
            continue;
        }
        places.push(place);
        let same = |other: &&&Row| (other.fabric.as_str(), other.point.inner_port) == place;
        let own: Vec<&Row> = rows.iter().filter(same).copied().collect();
        let grades = ROLES.map(|role| Some(at_tier(&own, base, summary, role)?.0)).to_vec();
        let is_like = |(of, known): &&mut (Vec<&Row>, Vec<Option<Grade>>)| {
            of.iter().all(|of| of.fabric == row.fabric) && *known == grades
        };
        match groups.iter_mut().find(is_like) {
            Some((all, _)) => all.extend(own),
            None => groups.push((own, grades)),
        }
    }
    let fabrics = rows.iter().any(|row| rows.iter().any(|other| other.fabric != row.fabric));
    let verdict = |(rows, _): &(Vec<&Row>, Vec<Option<Grade>>)| {
        let found: Vec<(Grade, String)> =
            ROLES.iter().filter_map(|role| at_tier(rows, base, summary, *role)).collect();
        let grades: Vec<Grade> = found.iter().map(|(grade, _)| *grade).collect();
        let grade = [Grade::Bad, Grade::Good].into_iter().find(|grade| grades.contains(grade));
        let places: Vec<String> = found.into_iter().map(|(_, text)| text).collect();
        let mut ports: Vec<&str> = rows.iter().map(|row| row.point.inner_port.title()).collect();
        ports.dedup();
        let fabric = rows.first().filter(|_| fabrics).map(|row| format!(", {}", row.fabric));
        (!places.is_empty()).then(|| {
            grade.unwrap_or(Grade::Note).says(format!(
                "{label}{}, {}: compared with {}, the peak load is {}.",
                fabric.unwrap_or_default(),
                ports.join(" or "),
                title(base),
                places.join(", and ")
            ))
        })
    };
    groups.iter().filter_map(verdict).collect()
}

/// The difference to another dataplane at one tier.
fn at_tier(rows: &[&Row], base: &str, summary: &Summary, role: Role) -> Option<(Grade, String)> {
    let gain = |row: &&Row| {
        let tier = |row: &Row| Some(row.tiers.iter().find(|tier| tier.role == role)?.mmr);
        let same = |other: &&Row| {
            other.dataplane == base && (&other.fabric, &other.point) == (&row.fabric, &row.point)
        };
        tier(row)?.gain_over(&tier(summary.rows.iter().find(same)?)?)
    };
    let gains: Vec<(f64, f64)> = rows.iter().filter_map(gain).collect();
    if gains.is_empty() {
        return None;
    }
    let place = match role {
        Role::Leaf => "at the leaf",
        Role::Spine => "between the spines",
        Role::FarLeaf => "at the receiving leaf",
    };
    let Some(((least, most), beyond)) = beyond_noise(&gains, ROUTING) else {
        return Some((Grade::Note, format!("{} {place}", within_noise(&gains))));
    };
    let grade = if least > 0.0 { Grade::Good } else { Grade::Bad };
    let noise = match gains.len() - beyond {
        0 => String::new(),
        same => format!(" (within noise at {same} of {} points)", gains.len()),
    };
    Some((grade, format!("{} {place}{noise}", change(least, most))))
}

/// What kernel VXLAN does at a leaf with several uplinks whatever the policy is, if it is compared
/// there.
pub(super) fn route_cache(labels: &[String], summary: &Summary) -> Option<Verdict> {
    let uplinks =
        |row: &Row| row.tiers.iter().any(|tier| tier.role == Role::Leaf && tier.links > 1);
    let compared = labels.len() > 1 && labels.iter().any(|label| label == KERNEL);
    let has_plain = labels.iter().any(|label| label == PLAIN);
    let plain = match has_plain {
        true => format!("Compare the policies with {PLAIN}, which gets a route for each frame."),
        false => format!("Add the dataplane {PLAIN}, which gets a route for each frame."),
    };
    let alike = match summary.rows.iter().any(|row| row.workload.is_some()) {
        true => {
            " With several senders, its repetitions in one fabric are alike: the interval is that of \
             this start of the fabric."
        }
        false => "",
    };
    (compared && summary.rows.iter().any(uplinks)).then(|| Grade::Note.says(format!(
            "Kernel VXLAN keeps the route to a VTEP for each CPU: the CPU of the sender chooses the \
             uplink of the leaf, whatever the source port. So a gain over kernel VXLAN at the leaf is \
             not that of a policy alone. {plain}{alike}"
        )))
}
