//! `answerback migrate`: the store's schema, and the way from SQLite to PostgreSQL.

use super::exit::{Failure, chain};
use super::{config_file, output};
use crate::config::{PostgresUrl, StoreUrl};
use crate::registry::Registry;
use crate::store::copy::{Copied, Progress, copy};
use crate::store::{Migrated, postgres, sqlite};
use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use std::error::Error;
use std::path::PathBuf;

/// Bring the store's schema up to date, or copy a SQLite store into PostgreSQL
///
/// A copy takes over everything under the same ids; the file stays as it is. One that was broken off goes on
/// where it stopped when it is run again.
#[derive(clap::Args)]
pub(crate) struct Migrate {
    /// The configuration, whose store is meant; ./answerback.toml if that exists, else the defaults
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Copy this store, sqlite:PATH, whose daemon has stopped
    #[arg(long, value_name = "URL")]
    from: Option<String>,

    /// Copy into this empty database, postgres://…, instead of the configuration's store
    #[arg(long, value_name = "URL", requires = "from", conflicts_with_all = ["config", "to_env"])]
    to: Option<String>,

    /// The same, but its URL is in this environment variable, where it may hold a password
    #[arg(long, value_name = "NAME", requires = "from", conflicts_with = "config")]
    to_env: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Migrate, registry: &Registry) -> Result<(), Failure> {
    match &args.from {
        None => {
            let store = configured(args, registry)?;
            let migrated = super::runtime(false)?.block_on(bring_up_to_date(&store))?;
            tell_migrated(&store, migrated.as_ref(), args.json)
        }
        Some(from) => {
            let file = match StoreUrl::parse(from) {
                Ok(StoreUrl::Sqlite(file)) => file,
                Ok(_) => return Err(usage("--from is no file; write sqlite:PATH")),
                Err(what) => return Err(usage(&format!("--from {what}"))),
            };
            let to = target(args, registry)?;
            let StoreUrl::Postgres(PostgresUrl { url, .. }) = &to else {
                return Err(Failure::other(format!(
                    "the configuration's store is {to}, and a copy goes into PostgreSQL: name the \
                     database by url_env in [store], or by --to-env"
                )));
            };
            let bar = progress();
            let show = |at| show(&bar, at);
            let copying = Box::pin(copy(&file, url, &show));
            let copied = super::runtime(false)?.block_on(copying);
            let elapsed = bar.elapsed();
            bar.finish_and_clear();
            let copied = copied.map_err(failed)?;
            tell_copied(&StoreUrl::Sqlite(file), &to, &copied, args.json)?;
            if !args.json {
                output::line(&format!(
                    "copied in {}; daemons whose store is {to} go on where the old one stopped",
                    HumanDuration(elapsed)
                ))?;
            }
            Ok(())
        }
    }
}

fn usage(what: &str) -> Failure {
    Failure::Usage(what.to_owned())
}

fn failed(error: impl Error + Send + Sync + 'static) -> Failure {
    Failure::other(chain(&error))
}

/// The store that the configuration names.
fn configured(args: &Migrate, registry: &Registry) -> Result<StoreUrl, Failure> {
    let config = config_file::read(args.config.as_deref(), registry).map_err(|error| {
        output::complain(&error.to_string());
        Failure::other("the configuration cannot be used; nothing was changed")
    })?;
    Ok(config.store)
}

/// Where a copy goes.
fn target(args: &Migrate, registry: &Registry) -> Result<StoreUrl, Failure> {
    let (text, option) = match (&args.to, &args.to_env) {
        (Some(url), _) => (url.clone(), "--to"),
        (None, Some(name)) => match std::env::var(name) {
            Ok(url) => (url, "--to-env"),
            Err(_) => return Err(usage(&format!("there is no environment variable {name}"))),
        },
        (None, None) => return configured(args, registry),
    };
    match StoreUrl::parse(text.trim()) {
        Ok(StoreUrl::Postgres(url)) if args.to.is_some() && url.has_password() => Err(usage(
            "everybody on this machine can read a password on the command line; put the whole URL \
             into an environment variable and name that by --to-env",
        )),
        Ok(store @ StoreUrl::Postgres(_)) => Ok(store),
        Ok(_) => Err(usage(&format!("{option} is no PostgreSQL; write postgres://HOST/DATABASE"))),
        Err(what) => Err(usage(&format!("{option} {what}"))),
    }
}

/// `None` when there is nothing that lasts.
async fn bring_up_to_date(store: &StoreUrl) -> Result<Option<Migrated>, Failure> {
    match store {
        StoreUrl::Memory => Ok(None),
        StoreUrl::Sqlite(path) => sqlite::bring_up_to_date(path).map(Some).map_err(failed),
        StoreUrl::Postgres(PostgresUrl { url, .. }) => {
            postgres::bring_up_to_date(url).await.map(Some).map_err(failed)
        }
    }
}

fn tell_migrated(
    store: &StoreUrl,
    migrated: Option<&Migrated>,
    as_json: bool,
) -> Result<(), Failure> {
    if as_json {
        let (before, now) = (migrated.and_then(|m| m.before), migrated.map(|m| m.now));
        let text = json!({"store": store.to_string(), "before": before, "now": now});
        return output::json_line(text.to_string().as_bytes());
    }
    output::line(&format!("{store}: {}", what_was_done(migrated)))
}

fn what_was_done(migrated: Option<&Migrated>) -> String {
    match migrated {
        None => "it is made anew at each start; nothing to do".to_owned(),
        Some(Migrated { before: None, now }) => format!("schema {now} was made"),
        Some(Migrated { before: Some(before), now }) if before == now => {
            format!("schema {now} is up to date")
        }
        Some(Migrated { before: Some(before), now }) => format!("schema {before} → {now}"),
    }
}

/// On standard error, and only where that is a terminal.
fn progress() -> ProgressBar {
    let bar = ProgressBar::new(0);
    bar.set_draw_target(ProgressDrawTarget::stderr());
    let template = "{bar:40} {percent:>3} %  {human_pos} of {human_len} rows, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

fn show(bar: &ProgressBar, at: Progress) {
    match at {
        Progress::Copying { copied, total } => {
            if bar.length() != Some(total) {
                bar.set_length(total);
                // What was copied earlier says nothing about how fast it goes.
                bar.set_position(copied);
                bar.reset_eta();
            }
            bar.set_position(copied);
        }
        Progress::Comparing => {
            if let Ok(style) = ProgressStyle::with_template("{spinner} comparing the two") {
                bar.set_style(style);
            }
            bar.tick();
        }
    }
}

fn tell_copied(
    from: &StoreUrl,
    to: &StoreUrl,
    copied: &Copied,
    as_json: bool,
) -> Result<(), Failure> {
    let total: u64 = copied.tables.iter().map(|(_, rows)| rows).sum();
    if as_json {
        let rows: serde_json::Map<String, serde_json::Value> = copied
            .tables
            .iter()
            .map(|(table, rows)| ((*table).to_owned(), (*rows).into()))
            .collect();
        let text = json!({
            "from": from.to_string(), "to": to.to_string(), "rows": rows, "total": total,
            "copied_earlier": copied.earlier,
        });
        return output::json_line(text.to_string().as_bytes());
    }
    if let Some(earlier) = copied.earlier.filter(|earlier| *earlier > 0) {
        output::complain(&format!("{} rows were there from before", HumanCount(earlier)));
    }
    let mut rows: Vec<Vec<String>> = copied
        .tables
        .iter()
        .map(|(table, rows)| vec![(*table).to_owned(), HumanCount(*rows).to_string()])
        .collect();
    rows.push(vec!["all".to_owned(), HumanCount(total).to_string()]);
    output::line(&output::table(Some(&["TABLE", "ROWS"]), &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_to_a_schema_is_told() {
        let done = |before, now| what_was_done(Some(&Migrated { before, now }));
        assert_eq!(done(None, 2), "schema 2 was made");
        assert_eq!(done(Some(1), 2), "schema 1 → 2");
        assert_eq!(done(Some(2), 2), "schema 2 is up to date");
    }
}
