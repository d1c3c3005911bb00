use super::*;
use crate::store::postgres::connect::Link;
use answerback_testkit::postgres::database;
use futures::FutureExt as _;

fn pool_of(url: &str) -> Pool {
    new(Target::parse(&url.into()).unwrap()).unwrap()
}

async fn settings(pool: &Pool) -> Vec<String> {
    let connection = pool.get().await.unwrap();
    let sql = "SELECT current_setting('enable_seqscan'), current_setting('lock_timeout')";
    let row = connection.client.query_typed(sql, &[]).await.unwrap().remove(0);
    vec![row.get(0), row.get(1)]
}

#[tokio::test]
async fn a_session_of_our_own_is_told_from_a_proxys() {
    let database = database().await;
    let straight = pool_of(database.url());
    assert!(straight.get().await.unwrap().direct);
    assert_eq!(settings(&straight).await, ["off", "2s"]);
    let around = pool_of(&database.pgbouncer_url());
    assert!(!around.get().await.unwrap().direct);
    assert_eq!(settings(&around).await, ["on", "0"], "nothing is left in a session of all");
}

#[tokio::test]
async fn what_comes_again_is_prepared_only_on_the_straight_way() {
    let database = database().await;
    for (url, expected) in [(database.url().to_owned(), 2), (database.pgbouncer_url(), 0)] {
        let pool = pool_of(&url);
        let link = Link::new(pool.clone());
        for n in 0..3_i64 {
            let row = link
                .read(move |lent| {
                    async move {
                        let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 1] =
                            [(&n, Type::INT8)];
                        lent.query_once("SELECT $1 + 2", &params).await?;
                        lent.query("SELECT 1", &[]).await?;
                        lent.query("SELECT $1 + 1", &params).await
                    }
                    .boxed()
                })
                .await
                .unwrap();
            assert_eq!(row[0].get::<_, i64>(0), n + 1);
            // Whoever comes next finds it prepared, once that is over.
            while pool.status().available == 0 {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(pool.get().await.unwrap().prepared.len(), expected, "{url}");
    }
}

#[tokio::test]
async fn a_statement_that_the_schema_left_behind_is_prepared_anew() {
    let database = database().await;
    let pool = pool_of(database.url());
    let link = Link::new(pool.clone());
    let own = database.connect().await;
    own.batch_execute("CREATE TABLE t (n INTEGER); INSERT INTO t VALUES (1)").await.unwrap();
    let read = || link.read(|lent| lent.query("SELECT * FROM t", &[]).boxed());
    for _ in 0..3 {
        assert_eq!(read().await.unwrap()[0].len(), 1);
        while pool.status().available == 0 {
            tokio::task::yield_now().await;
        }
    }
    own.batch_execute("ALTER TABLE t ADD COLUMN m TEXT").await.unwrap();
    assert_eq!(read().await.unwrap()[0].len(), 2);
    while pool.status().available == 0 {
        tokio::task::yield_now().await;
    }
    own.batch_execute("ALTER TABLE t DROP COLUMN m").await.unwrap();
    let done = link.transaction(|lent| {
        async move {
            let (_, rows, ()) = futures::try_join!(
                lent.begin(),
                lent.query("SELECT * FROM t", &[]),
                lent.commit()
            )?;
            Ok(rows[0].len())
        }
        .boxed()
    });
    assert_eq!(done.await.unwrap(), 1);
}
