//! `answerback demo`: the main job in one process.

use super::exit::Failure;

/// See the main job done in one process, on a fresh store, without any set-up
#[derive(clap::Args)]
pub(crate) struct Demo {
    /// Answer by itself instead of waiting for your answer
    #[arg(long)]
    auto: bool,
}

pub(crate) fn run(args: &Demo) -> Result<(), Failure> {
    let runtime = super::runtime(true)?;
    Ok(runtime.block_on(Box::pin(crate::demo::run(args.auto)))?)
}
