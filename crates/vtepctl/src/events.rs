//! `vtepctl events`: one line for each event, written immediately.

use std::io::Write;

use api::v1;

use crate::arguments::Output;
use crate::commands::Asking;
use crate::output::Failure;

/// Prints events as they arrive; with `follow`, until the daemon ends.
///
/// # Errors
/// When the daemon ends, or the output cannot be written.
pub async fn print(
    asking: &mut Asking<'_, impl Write>,
    request: v1::WatchEventsRequest,
) -> Result<(), Failure> {
    let mut events = asking.client.watch_events(request).await?.into_inner();
    while let Some(event) = events.message().await? {
        match asking.output {
            Output::Json => {
                serde_json::to_writer(&mut *asking.out, &event).map_err(std::io::Error::from)?;
                writeln!(asking.out)?;
            }
            Output::Table if event.kind == "lost" => writeln!(asking.out, "lost: {}", event.text)?,
            Output::Table => {
                let v1::Event { sequence, time, kind, text, .. } = &event;
                writeln!(asking.out, "{sequence:>6}  {time}  {kind:<15}  {text}")?;
            }
        }
        if request.follow {
            asking.out.flush()?;
        }
    }
    Ok(())
}
