use super::*;
use answerback_testkit::postgres::{Database, database};

/// A step of a version to come, which the version before it can live with or not.
const LATER: &str = "ALTER TABLE probe ADD COLUMN more INTEGER;";
const BREAKING: &str = "UPDATE compatibility SET oldest = 2;";

fn known() -> i32 {
    i32::try_from(MIGRATIONS.len()).unwrap()
}

fn target(url: &str) -> Target {
    Target::parse(&url.into()).unwrap()
}

fn with_later(sql: &str) -> Vec<Migration> {
    steps(&[MIGRATIONS[0], ("V2__later", sql)]).unwrap()
}

async fn execute(database: &Database, sql: &str) {
    database.connect().await.batch_execute(sql).await.unwrap();
}

#[tokio::test]
async fn an_empty_database_gets_the_schema_once() {
    let database = database().await;
    let target = target(database.url());
    let first = migrate(&target).await.unwrap();
    assert_eq!(first, Migrated { before: None, now: known() });
    let again = migrate(&target).await.unwrap();
    assert_eq!(again, Migrated { before: Some(known()), now: known() });
}

#[tokio::test]
async fn many_daemons_may_start_at_once() {
    let database = database().await;
    for round in ["CREATE SCHEMA one", "CREATE SCHEMA two", "CREATE SCHEMA three"] {
        execute(&database, round).await;
        let schema = round.rsplit(' ').next().unwrap();
        let url = format!("{}?options=-c%20search_path%3D{schema}", database.url());
        let starts = (0..8).map(|_| {
            let target = target(&url);
            tokio::spawn(async move { migrate(&target).await })
        });
        for start in starts.collect::<Vec<_>>() {
            assert_eq!(start.await.unwrap().unwrap().now, known());
        }
    }
}

#[tokio::test]
async fn the_schema_can_be_made_through_a_proxy_that_pools_transactions() {
    let database = database().await;
    let target = target(&database.pgbouncer_url());
    assert_eq!(migrate(&target).await.unwrap().before, None);
    assert_eq!(migrate(&target).await.unwrap().before, Some(known()));
}

#[tokio::test]
async fn a_later_version_upgrades_and_this_one_goes_on_while_it_may() {
    let database = database().await;
    let target = target(database.url());
    migrate(&target).await.unwrap();
    let upgraded =
        run_migrations(&target, &with_later(LATER), Unfinished::IsRefused).await.unwrap();
    assert_eq!(upgraded, Migrated { before: Some(known()), now: known() + 1 });
    let ours = migrate(&target).await.unwrap();
    assert_eq!(ours.now, known() + 1, "the version before goes on");
    execute(&database, BREAKING).await;
    let error = migrate(&target).await.unwrap_err();
    assert!(matches!(error, OpenError::Newer { found: 2, oldest: 2, known: 1 }), "{error}");
}

#[tokio::test]
async fn a_step_that_fails_leaves_nothing() {
    let database = database().await;
    let target = target(database.url());
    let broken = with_later("CREATE TABLE half (id INTEGER); SELECT nonsense;");
    let error =
        run_migrations(&target, &broken, Unfinished::IsRefused).await.unwrap_err().to_string();
    assert!(error.contains("nonsense"), "{error}");
    execute(&database, "CREATE TABLE half (id INTEGER)").await;
    assert_eq!(migrate(&target).await.unwrap().before, Some(known()), "what went before is kept");
}

#[tokio::test]
async fn what_another_version_calls_the_same_step_is_not_taken_for_ours() {
    let database = database().await;
    let target = target(database.url());
    run_migrations(&target, &with_later(LATER), Unfinished::IsRefused).await.unwrap();
    let other = steps(&[MIGRATIONS[0], ("V2__other", "SELECT 1;"), ("V3__more", "SELECT 1;")]);
    let error = run_migrations(&target, &other.unwrap(), Unfinished::IsRefused).await.unwrap_err();
    assert!(matches!(error, OpenError::Migrate { .. }), "{error}");
}

#[tokio::test]
async fn tables_of_another_program_are_left_alone() {
    let database = database().await;
    execute(&database, "CREATE TABLE events (id INTEGER); CREATE TABLE theirs (id INTEGER)").await;
    let error = migrate(&target(database.url())).await.unwrap_err();
    assert!(matches!(&error, OpenError::Foreign { tables, .. } if tables == "events"), "{error}");
    execute(&database, "DROP TABLE events").await;
    migrate(&target(database.url())).await.unwrap();
}

#[tokio::test]
async fn an_unfinished_copy_is_not_served() {
    let database = database().await;
    migrate(&target(database.url())).await.unwrap();
    execute(&database, "CREATE TABLE copying (id INTEGER)").await;
    let error = migrate(&target(database.url())).await.unwrap_err();
    assert!(matches!(error, OpenError::Copying), "{error}");
}

#[tokio::test]
async fn a_user_who_may_not_create_tables_can_use_those_that_are_there() {
    let database = database().await;
    let name = format!("weak_{}", std::process::id());
    execute(
        &database,
        &format!(
            "CREATE ROLE {name} LOGIN PASSWORD 'weak'; REVOKE CREATE ON SCHEMA public FROM PUBLIC"
        ),
    )
    .await;
    let mut url = url::Url::parse(database.url()).unwrap();
    url.set_username(&name).unwrap();
    url.set_password(Some("weak")).unwrap();
    let weak = target(url.as_str());
    let error = migrate(&weak).await.unwrap_err();
    assert!(matches!(error, OpenError::Forbidden { .. }), "{error}");
    migrate(&target(database.url())).await.unwrap();
    let grant =
        format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {name}");
    execute(&database, &grant).await;
    migrate(&weak).await.unwrap();
    execute(&database, &format!("DROP OWNED BY {name}; DROP ROLE {name}")).await;
}

#[tokio::test]
async fn what_keeps_the_daemon_out_is_told_without_its_password() {
    let database = database().await;
    let change = |change: fn(&mut url::Url)| {
        let mut url = url::Url::parse(database.url()).unwrap();
        change(&mut url);
        target(url.as_str())
    };
    let no_database = change(|url| url.set_path("nowhere"));
    let error = migrate(&no_database).await.unwrap_err();
    assert!(matches!(&error, OpenError::NoDatabase { database, .. } if database == "nowhere"));
    let wrong = change(|url| url.set_password(Some("hunter2")).unwrap());
    let error = migrate(&wrong).await.unwrap_err();
    assert!(matches!(error, OpenError::Denied { .. }), "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
    let nobody = change(|url| {
        url.set_port(Some(1)).unwrap();
        url.set_password(Some("hunter2")).unwrap();
    });
    let error = migrate(&nobody).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, OpenError::Unreachable { .. }), "{text}");
    assert!(text.contains(":1") && !text.contains("hunter2"), "{text}");
}

#[tokio::test]
async fn a_database_that_does_not_hold_every_text_is_refused() {
    let database = database().await;
    let name = format!("latin_{}", std::process::id());
    execute(
        &database,
        &format!(
            "CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' LOCALE_PROVIDER libc \
             TEMPLATE template0"
        ),
    )
    .await;
    let mut url = url::Url::parse(database.url()).unwrap();
    url.set_path(&name);
    let error = migrate(&target(url.as_str())).await.unwrap_err();
    execute(&database, &format!("DROP DATABASE {name}")).await;
    assert!(matches!(&error, OpenError::Encoding { found } if found == "LATIN1"), "{error}");
}
