//! Keeps one DynamoDB item a wait, which follows the wait from open to its end.
//!
//! * `config`: the keys of the configuration, pure;
//! * `value`: JSON as attribute values and what they weigh, pure;
//! * `request`: a message as what is to be written, pure;
//! * `client`: the calls.
//!
//! # The item
//!
//! | attribute | holds |
//! | --- | --- |
//! | `pk` | `THREAD#<thread_id>`; over 2,048 bytes `THREAD#sha256:<hex of the id>` |
//! | `sk` | `WAIT#<dedupe key after wait.created:>`; over 1,024 bytes `WAIT#sha256:<hex of that>` |
//! | `status` | `open`, then `answered`, `timed-out` or `cancelled` |
//! | `expires_at` | the envelope's text, or `never` |
//! | `generation` | a number |
//! | `envelope` | the exact text as announced |
//! | every other field of the envelope | as it is; as JSON text where DynamoDB cannot hold it, such as deeper than 32 levels |
//! | `answered_at`, `answered_by`, `answered_via` | once answered |
//! | `ttl` | epoch seconds, once the wait is over and `ttl` is configured |
//! | `oversize` | true where `question` and `envelope` were left out because of 400 KB |
//!
//! Every write is conditional: the first announcement writes the item only where none is, and an
//! end changes only an open one. Whatever order messages come in, and however often, a closed row
//! stays as it is.

mod client;
mod config;
mod request;
mod value;

pub use config::DynamoDbKind;
