//! The daemon as it is, but for its clock, which the harness can set.

use answerback::Answerback;
use answerback_chaos::clock::{OFFSET_FILE, SteppedClock};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let Some(file) = std::env::var_os(OFFSET_FILE) else {
        return Answerback::new().run();
    };
    match SteppedClock::open(Path::new(&file)) {
        Ok(clock) => Answerback::new().clock(Arc::new(clock)).run(),
        Err(_) => ExitCode::from(2),
    }
}
