//! `vtepctl events`: one line for each event, written immediately.

use std::io::Write;

use api::v1;

use crate::arguments::Output;
use crate::output::Failure;
use crate::session::Session;

/// Prints events as they arrive; with `follow`, until the daemon ends.
///
/// # Errors
/// When the daemon ends, no event has the number that it asks for yet, or the output cannot be
/// written.
pub(crate) async fn print(
    session: &mut Session<'_, impl Write>,
    request: v1::WatchEventsRequest,
) -> Result<(), Failure> {
    if request.after > 0 {
        let last = last(session).await?;
        if last < request.after {
            return Err(Failure::Input(format!(
                "there is no event {} yet: the last one has number {last}",
                request.after
            )));
        }
    }
    let mut events = session.client.watch_events(request).await?.into_inner();
    while let Some(event) = events.message().await? {
        match session.output {
            Output::Json => {
                serde_json::to_writer(&mut *session.out, &event).map_err(std::io::Error::from)?;
                writeln!(session.out)?;
            }
            Output::Table if event.kind == "lost" => writeln!(session.out, "lost: {}", event.text)?,
            Output::Table => {
                let v1::Event { sequence, time, kind, text, .. } = &event;
                writeln!(session.out, "{sequence:>6}  {time}  {kind:<15}  {text}")?;
            }
        }
        if request.follow {
            session.out.flush()?;
        }
    }
    Ok(())
}

/// The number of the last event; 0 before the first.
async fn last(session: &mut Session<'_, impl Write>) -> Result<u64, Failure> {
    let all = v1::WatchEventsRequest::default();
    let mut events = session.client.watch_events(all).await?.into_inner();
    let mut last = 0;
    while let Some(event) = events.message().await? {
        last = event.sequence.max(last);
    }
    Ok(last)
}
