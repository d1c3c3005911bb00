//! `answerback announcements`: what is, was or could not be announced.

use super::client::{Api, Ask, Connection};
use super::exit::Failure;
use super::listing::{self, Amount};
use super::outbox::{self, Item, State};
use http::Method;

/// What is, was or could not be announced
#[derive(clap::Args)]
pub(crate) struct Announcements {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List announcements, newest first
    List {
        /// Only those in this state
        #[arg(long)]
        state: Option<State>,
        /// Only those of this announcer
        #[arg(long, value_name = "NAME")]
        announcer: Option<String>,
        #[command(flatten)]
        amount: Amount,
    },
    /// Send dead announcements again: one, or all of an announcer, which also wakes it
    Retry {
        /// Which one
        #[arg(required_unless_present = "announcer", conflicts_with = "announcer")]
        id: Option<String>,
        /// All dead ones of this announcer
        #[arg(long, value_name = "NAME")]
        announcer: Option<String>,
    },
}

pub(crate) async fn run(args: Announcements) -> Result<(), Failure> {
    let api = Api::new(&args.connection)?;
    let json = args.connection.json;
    match args.command {
        Command::List { state, announcer, amount } => {
            let ask = Ask::new(Method::GET, "/v1/announcements")
                .with("state", state.map(State::name))
                .with("announcer", announcer);
            let header = [
                "ID",
                "ANNOUNCER",
                "QUESTION",
                "THREAD",
                "GEN",
                "EVENT",
                "STATE",
                "ATTEMPTS",
                "AT",
                "TROUBLE",
            ];
            listing::print(&api, ask, "announcements", &amount, json, &header, Item::row).await
        }
        Command::Retry { announcer: Some(name), .. } => {
            outbox::retry(&api, "announcers", &name, json).await
        }
        Command::Retry { id, .. } => {
            outbox::retry(&api, "announcements", &id.unwrap_or_default(), json).await
        }
    }
}
