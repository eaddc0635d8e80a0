//! The connection of the screen to vtepd: samples at an interval, events, changes.

use std::time::{Duration, Instant};

use api::{Address, Client, v1};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::{MissedTickBehavior, interval_at, sleep, timeout};
use tonic::{Code, Response, Streaming};

use super::model::{Change, Update};
use super::sample::Sample;
use crate::output::Failure;
use crate::session::all;
use crate::tables::{attached, detached, policy_of, policy_set};

/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_secs(1);
/// After this time without an answer, the connection counts as lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The last event that was read, of which process.
#[derive(Default)]
struct Seen {
    pid: u32,
    sequence: u64,
}

/// Sends samples and events, and applies changes, until the screen drops its end of `changes`.
/// Connects again when the connection is lost.
pub(super) async fn follow(
    address: &Address,
    interval: Duration,
    mut changes: UnboundedReceiver<Change>,
    updates: UnboundedSender<Update>,
) {
    let mut seen = Seen::default();
    while let Err(failure) = connected(address, interval, &mut changes, &updates, &mut seen).await {
        // The receiver lives as long as the screen.
        let _ = updates.send(Update::Disconnected(failure.to_string()));
        let retry = sleep(RETRY);
        tokio::pin!(retry);
        loop {
            tokio::select! {
                () = &mut retry => break,
                change = changes.recv() => match change {
                    Some(_) => {
                        let text = "nothing is changed: there is no connection to vtepd";
                        let _ = updates.send(Update::Refused(text.to_owned()));
                    }
                    None => return,
                },
            }
        }
    }
}

/// As [`follow`], with one connection.
///
/// # Errors
/// When vtepd cannot be connected to, ends or does not answer.
async fn connected(
    address: &Address,
    interval: Duration,
    changes: &mut UnboundedReceiver<Change>,
    updates: &UnboundedSender<Update>,
    seen: &mut Seen,
) -> Result<(), Failure> {
    let mut client = api::connect(address).await?;
    let first = sample(&mut client).await?;
    if first.status.pid != seen.pid {
        *seen = Seen { pid: first.status.pid, sequence: 0 };
    }
    let _ = updates.send(Update::Sample(Box::new(first)));
    let request =
        v1::WatchEventsRequest { follow: true, after: seen.sequence, ..Default::default() };
    let mut events = client.watch_events(request).await?.into_inner();
    let mut ticks = interval_at(tokio::time::Instant::now() + interval, interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            event = events.message() => {
                let ended = || Failure::Input("vtepd has ended".to_owned());
                let event = event?.ok_or_else(ended)?;
                seen.sequence = seen.sequence.max(event.sequence);
                let _ = updates.send(Update::Event(Box::new(event)));
                continue;
            }
            _ = ticks.tick() => {}
            change = changes.recv() => {
                let Some(change) = change else { return Ok(()) };
                let update = match apply(&mut client, change).await {
                    Ok(text) => Update::Changed(text),
                    Err(failure) => Update::Refused(failure.to_string()),
                };
                let _ = updates.send(update);
                ticks.reset();
            }
        }
        let _ = updates.send(Update::Sample(Box::new(sample(&mut client).await?)));
    }
}

/// Asks for all that the screen shows.
///
/// # Errors
/// When vtepd ends or does not answer.
pub(super) async fn sample(client: &mut Client) -> Result<Sample, Failure> {
    let answer = timeout(ANSWER_TIMEOUT, ask(client)).await;
    let late =
        |_| Failure::Input(format!("vtepd does not answer for {} s", ANSWER_TIMEOUT.as_secs()));
    Ok(answer.map_err(late)??)
}

async fn ask(client: &mut Client) -> Result<Sample, tonic::Status> {
    let status = client.get_status(v1::GetStatusRequest {}).await?.into_inner();
    let paths = client.list_paths(v1::ListPathsRequest { vtep: None }).await;
    let paths = probed(paths).await?;
    let queue_pairs = client.list_queue_pairs(v1::ListQueuePairsRequest::default()).await;
    let queue_pairs = probed(queue_pairs).await?;
    let counters = client.get_counters(v1::GetCountersRequest {}).await?.into_inner();
    Ok(Sample { at: Instant::now(), status, counters, paths, queue_pairs })
}

/// The rows of an answer; absent if vtepd does not probe paths, or is too old to.
async fn probed<T>(
    answer: Result<Response<Streaming<T>>, tonic::Status>,
) -> Result<Option<Vec<T>>, tonic::Status> {
    match answer {
        Ok(answer) => Ok(Some(all(answer).await?)),
        Err(status) if matches!(status.code(), Code::FailedPrecondition | Code::Unimplemented) => {
            Ok(None)
        }
        Err(status) => Err(status),
    }
}

/// Applies a change. Returns what is in force then, as a sentence.
async fn apply(client: &mut Client, change: Change) -> Result<String, Failure> {
    match change {
        Change::Policy { vni, policy } => {
            let request = v1::SetPolicyRequest {
                vni,
                policy: Some(policy.to_owned()),
                ..v1::SetPolicyRequest::default()
            };
            let row = client.set_policy(request).await?.into_inner();
            if row.left.is_none() || row.chosen_port.is_some() {
                return Ok(format!("VNI {vni} has the policy {}", policy_of(&row).name));
            }
            let mut sentence = Vec::new();
            policy_set(&mut sentence, &row)?;
            Ok(String::from_utf8_lossy(&sentence).trim_end().to_owned())
        }
        Change::Attach { vni } => {
            Ok(attached(&client.attach_vni(v1::AttachVniRequest { vni }).await?.into_inner()))
        }
        Change::Detach { vni } => {
            Ok(detached(&client.detach_vni(v1::DetachVniRequest { vni }).await?.into_inner()))
        }
    }
}

/// Two samples with this time between them, and the events that vtepd remembers.
///
/// # Errors
/// When no vtepd runs, or it ends or does not answer.
pub(super) async fn once(address: &Address, interval: Duration) -> Result<Vec<Update>, Failure> {
    let mut client = api::connect(address).await?;
    let first = sample(&mut client).await?;
    sleep(interval).await;
    let second = sample(&mut client).await?;
    let samples = [first, second].map(|sample| Update::Sample(Box::new(sample)));
    let events = all(client.watch_events(v1::WatchEventsRequest::default()).await?).await?;
    let events = events.into_iter().map(|event| Update::Event(Box::new(event)));
    Ok(samples.into_iter().chain(events).collect())
}
