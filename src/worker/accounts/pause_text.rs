//! What the agent says about its pauses.

use crate::accounts::pause::{Pause, Paused};
use bloom_core::limits;
use bloom_core::pause::PauseCause;

/// Describes a pause for people: what is paused, why, until when, and what to do.
pub(crate) fn told((kind, name): &Paused, pause: &Pause) -> String {
    let until = jiff::Timestamp::from_millisecond(pause.until);
    let until = until.map_or_else(|_| pause.until.to_string(), |until| until.strftime("%Y-%m-%d %H:%M:%S UTC").to_string());
    let message = pause.message.trim();
    let message = match &pause.told_by {
        Some(worker) => format!(" (as worker {worker} found out)"),
        None if message.is_empty() => String::new(),
        None => format!(" ({message})"),
    };
    let what = format!("the {kind} {name}");
    match pause.cause {
        PauseCause::Quota => format!("{what} is out of quota{message}; nothing needs to be done. Tried again at {until}"),
        PauseCause::Credentials => format!(
            "{what} was refused{message}: sign in with claude as the user of the agent, then nothing else is needed; with a key of the API, \
             correct it and restart the agent. Tried again at {until}"
        ),
        PauseCause::Billing => format!("{what} has no credit{message}: top it up, then nothing else is needed. Tried again at {until}"),
        PauseCause::Model => {
            format!(
                "the model of {what} was refused{message}: choose another one in the profile, and restart the agent. Tried again at {until}"
            )
        }
        PauseCause::Start => {
            format!("runs of {what} end before they begin{message}: correct the profile, and restart the agent. Tried again at {until}")
        }
        PauseCause::Disk => {
            format!("{what} can't write to its directory{message}: check that its disk has room and works. Tried again at {until}")
        }
    }
}

/// The server refuses longer messages.
pub(crate) fn cut_chars(mut message: String) -> String {
    if let Some((at, _)) = message.char_indices().nth(limits::PAUSE_MESSAGE_CHARS) {
        message.truncate(at);
    }
    message.replace('\0', "\u{fffd}")
}
