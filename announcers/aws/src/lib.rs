//! What every sender to AWS shares.
//!
//! * [`Access`]: region, endpoint, role; loads the SDK's configuration with the house's rules (one
//!   attempt a call, a bound on each, TLS by rustls with ring, roles refreshed in time).
//! * [`failure`]: what an error of the SDK means for a message. Expired credentials, throttling,
//!   missing queues and denied access are retries: an operator mends them while the messages wait.
//! * [`batch`]: splits messages into calls of a batch API, keeps the groups of FIFO destinations in
//!   order and maps partial failures to messages.
//! * [`text`]: what SQS and SNS refuse in ids, bodies and attributes, and what it becomes.

mod access;
pub mod batch;
pub mod failure;
pub mod testing;
pub mod text;

pub use access::{Access, ENDPOINT_URL, REGION, ROLE_ARN, region_of_arn};
pub use aws_types::SdkConfig;
