//! `answerback deliveries`: answers on their way to hosts.

use super::client::{Api, Ask, Connection};
use super::exit::Failure;
use super::listing::{self, Amount};
use super::outbox::{self, Item, State};
use http::Method;

/// Answers on their way to hosts
#[derive(clap::Args)]
pub(crate) struct Deliveries {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List deliveries, newest first
    List {
        /// Only those in this state
        #[arg(long)]
        state: Option<State>,
        /// Only those of this route; `reply_to` and `pull` are routes too
        #[arg(long, value_name = "NAME")]
        route: Option<String>,
        #[command(flatten)]
        amount: Amount,
    },
    /// Send a dead delivery again
    Retry {
        /// Which one
        id: String,
    },
}

pub(crate) async fn run(args: Deliveries) -> Result<(), Failure> {
    let api = Api::new(&args.connection)?;
    let json = args.connection.json;
    match args.command {
        Command::List { state, route, amount } => {
            let ask = Ask::new(Method::GET, "/v1/deliveries")
                .with("state", state.map(State::name))
                .with("route", route);
            let header = [
                "ID", "ROUTE", "QUESTION", "THREAD", "GEN", "EVENT", "STATE", "ATTEMPTS", "AT",
                "TROUBLE",
            ];
            listing::print(&api, ask, "deliveries", &amount, json, &header, Item::row).await
        }
        Command::Retry { id } => outbox::retry(&api, "deliveries", &id, json).await,
    }
}
