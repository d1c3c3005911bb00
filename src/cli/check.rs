//! `answerback check`: is the configuration right, and is everything there that it names?

use super::exit::{Failure, chain};
use super::{config_file, output};
use crate::clock::{Clock as _, SystemClock};
use crate::config::{
    AnnouncerConfig, Config, ConfigError, PostgresUrl, RouteConfig, RouteTo, StoreUrl,
};
use crate::daemon::{self, StartError};
use crate::registry::Registry;
use crate::store::postgres;
use crate::store::sqlite::OpenError;
use answerback_contract::{Connecting, Target};
use answerback_core::Rules;
use futures::future::join_all;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Check the configuration: every problem with its line, its key and what would be right
#[derive(clap::Args)]
pub(crate) struct Check {
    /// The configuration; ./answerback.toml if that exists, else the defaults
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Also try the store and every announcer and route; sends nothing
    #[arg(long)]
    connect: bool,

    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Something that was, or could be, tried.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Line {
    part: &'static str,
    name: String,
    kind: String,
    target: String,
    /// `None` as long as it was not tried; the cure of what failed.
    tried: Option<Result<String, String>>,
}

pub(crate) fn run(args: &Check, registry: &Registry) -> Result<(), Failure> {
    let config = match config_file::read(args.config.as_deref(), registry) {
        Ok(config) => config,
        Err(error) => return Err(report(&error, args.json)),
    };
    for note in &config.notes {
        output::complain(&format!("note: {note}"));
    }
    let lines = if args.connect {
        // Without a daemon's telemetry: what a client library logs would only get in the way.
        super::runtime(true)?.block_on(Box::pin(connect(&config)))
    } else {
        lines_of(&config)
    };
    let failed = lines.iter().filter(|line| matches!(line.tried, Some(Err(_)))).count();
    if args.json {
        for line in &lines {
            output::json_line(line.json().as_bytes())?;
        }
    } else {
        output::line(&output::table(Some(header(args.connect)), &rows(&lines, args.connect)))?;
    }
    if failed > 0 {
        return Err(Failure::other(format!("{failed} of {} failed", lines.len())));
    }
    if !args.json {
        output::line("the configuration is right")?;
    }
    Ok(())
}

fn header(connect: bool) -> &'static [&'static str] {
    match connect {
        false => &["PART", "NAME", "TYPE", "TARGET"],
        true => &["PART", "NAME", "TYPE", "TARGET", "RESULT"],
    }
}

fn rows(lines: &[Line], connect: bool) -> Vec<Vec<String>> {
    lines
        .iter()
        .map(|line| {
            let mut row = vec![
                line.part.to_owned(),
                line.name.clone(),
                line.kind.clone(),
                line.target.clone(),
            ];
            if connect {
                row.push(match &line.tried {
                    None => "-".to_owned(),
                    Some(Ok(what)) => what.clone(),
                    Some(Err(what)) => format!("failed: {what}"),
                });
            }
            row
        })
        .collect()
}

impl Line {
    fn json(&self) -> String {
        let (ok, what) = match &self.tried {
            None => (None, None),
            Some(Ok(what)) => (Some(true), Some(what)),
            Some(Err(what)) => (Some(false), Some(what)),
        };
        json!({
            "part": self.part, "name": self.name, "type": self.kind, "target": self.target,
            "ok": ok, "result": what,
        })
        .to_string()
    }
}

/// Tells every problem on standard error; as JSON on standard output.
fn report(error: &ConfigError, as_json: bool) -> Failure {
    let ConfigError::Wrong(problems) = error else {
        return Failure::other(error.to_string());
    };
    for problem in problems {
        if as_json {
            let text = json!({
                "place": problem.place.to_string(), "key": problem.key, "problem": problem.what,
            });
            if let Err(failure) = output::json_line(text.to_string().as_bytes()) {
                return failure;
            }
        } else {
            output::complain(&problem.to_string());
        }
    }
    match problems.len() {
        1 => Failure::other("1 problem in the configuration"),
        n => Failure::other(format!("{n} problems in the configuration")),
    }
}

/// What the configuration names, in the order of the data's way.
fn lines_of(config: &Config) -> Vec<Line> {
    let scheme = if config.server.tls.is_some() { "https" } else { "http" };
    let listener = Line {
        part: "listener",
        name: String::new(),
        kind: scheme.to_owned(),
        target: config.server.listen.to_string(),
        tried: None,
    };
    let store = Line {
        part: "store",
        name: String::new(),
        kind: match &config.store {
            StoreUrl::Sqlite(_) | StoreUrl::Memory => "sqlite".to_owned(),
            StoreUrl::Postgres(_) => "postgres".to_owned(),
        },
        target: config.store.to_string(),
        tried: None,
    };
    let announcers = config.announcers.iter().map(|a| Line {
        part: "announcer",
        name: a.name.to_string(),
        kind: a.kind.to_owned(),
        target: a.target.describe(),
        tried: None,
    });
    let routes = config.routes.iter().map(|route| {
        let (kind, target) = match &route.to {
            RouteTo::Pull => ("pull", "kept until the host comes for it".to_owned()),
            RouteTo::Send { kind, target, .. } => (*kind, target.describe()),
        };
        Line {
            part: "route",
            name: route.name.to_string(),
            kind: kind.to_owned(),
            target,
            tried: None,
        }
    });
    [listener, store].into_iter().chain(announcers).chain(routes).collect()
}

/// Tries everything at the same time.
async fn connect(config: &Config) -> Vec<Line> {
    let mut lines = lines_of(config);
    let store = tokio::spawn(try_store(config.store.clone(), Arc::new(config.rules())));
    let announcers =
        config.announcers.iter().map(|AnnouncerConfig { name, target, sending, .. }| {
            try_target(name.to_string(), target, sending.timeout)
        });
    let routes = config.routes.iter().map(|RouteConfig { name, to, .. }| async move {
        match to {
            RouteTo::Pull => None,
            RouteTo::Send { target, sending, .. } => {
                Some(try_target(name.to_string(), target, sending.timeout).await)
            }
        }
    });
    let (store, announcers, routes) = tokio::join!(store, join_all(announcers), join_all(routes));
    let store = match store {
        Ok(result) => result,
        Err(error) => Err(error.to_string()),
    };
    let results =
        [None, Some(store)].into_iter().chain(announcers.into_iter().map(Some)).chain(routes);
    for (line, tried) in lines.iter_mut().zip(results) {
        line.tried = tried;
    }
    lines
}

/// Opens and probes a store that is there. One that is not is not made: that is the daemon's.
async fn try_store(url: StoreUrl, rules: Arc<Rules>) -> Result<String, String> {
    if let StoreUrl::Sqlite(path) = &url
        && !path.exists()
    {
        let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
        return match folder.is_dir() {
            true => Ok("not there yet; made at the first start".to_owned()),
            false => Err(format!("the folder {} is missing; make it", folder.display())),
        };
    }
    if let StoreUrl::Postgres(PostgresUrl { url, listen_url }) = &url {
        for url in [Some(url), listen_url.as_ref()].into_iter().flatten() {
            postgres::reach(url).await.map_err(|e| chain(&e))?;
        }
        return Ok("ok".to_owned());
    }
    match daemon::open_store(&url, rules, Arc::new(SystemClock)).await {
        Ok(store) => {
            let probed = store.probe(SystemClock.now()).await;
            store.close().await;
            probed.map(|()| "ok".to_owned()).map_err(|e| e.to_string())
        }
        // Whoever holds the lock has opened it, which is what was to be found out.
        Err(StartError::OpenStore(OpenError::Locked { holder, .. })) => Ok(match holder {
            Some(pid) => format!("ok: in use by a running daemon (pid {pid})"),
            None => "ok: in use by a running daemon".to_owned(),
        }),
        Err(error) => Err(chain(&error)),
    }
}

async fn try_target(
    name: String,
    target: &Arc<dyn Target>,
    attempt_timeout: Duration,
) -> Result<String, String> {
    let connecting = Connecting { name, attempt_timeout };
    let attempt = async {
        let announcer = target.connect(&connecting).await?;
        let probed = announcer.probe().await;
        announcer.close().await;
        probed
    };
    match timeout(attempt_timeout, attempt).await {
        Ok(Ok(())) => Ok("ok".to_owned()),
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err(format!(
            "no answer within {attempt_timeout:?}; is it there, and can it be reached from here?"
        )),
    }
}
