//! How answers come about and where they go: deadlines, and the places that envelopes name.

mod deadlines;
mod reply_to;

pub use deadlines::Deadlines;
pub use reply_to::{MAX_BYTES, ReplySender, ReplyToOutlet, ReplyToSettings};
