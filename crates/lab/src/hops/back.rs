//! The other direction of a connection.

use std::net::IpAddr;

use api::v1;
use fabric::deployed::Deployed;
use study::ask::ask;

use super::{Flow, HopsError, hosts};

/// The destination queue pair of the other direction, as the vtepd of one of the two leaves knows it
/// from the traffic of both.
///
/// # Errors
/// [`HopsError::NoPartner`] if neither knows it; the others as of [`super::follow`].
pub fn partner(deployed: &Deployed, flow: &Flow) -> Result<u32, HopsError> {
    let overlay = deployed.overlay()?;
    let (from, to) = hosts(&overlay, flow)?;
    let ends = [from, to].map(|host| IpAddr::from(host.address).to_string());
    let records = |leaf: &str, number: Option<u32>| -> Result<Vec<v1::QueuePair>, HopsError> {
        let request =
            v1::ListQueuePairsRequest { vni: Some(from.vni), gone: true, queue_pair: number };
        let asked = ask(&deployed.namespace(leaf)?, async |mut vtepd| {
            let mut found = Vec::new();
            let mut all = vtepd.list_queue_pairs(request).await?.into_inner();
            while let Some(record) = all.message().await? {
                found.push(record);
            }
            Ok(found)
        });
        // A leaf without vtepd knows none.
        Ok(asked.unwrap_or_default())
    };
    let own = records(&from.leaf, flow.queue_pair)?;
    let forth = own.into_iter().filter(|of| [&of.source, &of.destination] == [&ends[0], &ends[1]]);
    if let Some(partner) = forth.filter_map(|of| of.partner).next() {
        return Ok(partner);
    }
    let far = records(&to.leaf, None)?;
    let mut back =
        far.into_iter().filter(|of| [&of.source, &of.destination] == [&ends[1], &ends[0]]);
    let back = back.find(|of| of.partner.is_some() && of.partner == flow.queue_pair);
    back.map(|of| of.queue_pair).ok_or(HopsError::NoPartner)
}
