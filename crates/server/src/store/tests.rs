//! Tests of the store with both engines: an SQLite file, and a PostgreSQL of the test.

use coordinator::RECENT_AUDIT_ENTRIES;
use postgres_rig::Cluster;

use super::*;

fn user(id: i64, body: Option<&str>) -> Stored {
    Stored { kind: Kind::User, id, body: body.map(str::to_owned) }
}

fn at(committed: Committed) -> Option<i64> {
    match committed {
        Committed::At(version) => Some(version),
        Committed::Conflict => None,
        Committed::Unknown(why) => panic!("{why:#}"),
    }
}

/// Empty databases of all available engines, and whether each transaction may get another
/// connection.
fn databases(folder: &Path, cluster: Option<&Cluster>, name: &str) -> Vec<DatabaseLocation> {
    let mut all = vec![DatabaseLocation::File(folder.join(name))];
    if let Some(cluster) = cluster {
        for pooled in [false, true] {
            let url = cluster.database(&format!("{name}_{pooled}"));
            all.push(DatabaseLocation::of_url(&url, pooled).unwrap());
        }
    }
    all
}

#[tokio::test]
async fn both_engines_behave_alike() {
    let (folder, cluster) = (tempfile::tempdir().unwrap(), Cluster::start());
    let folder = folder.path();
    for database in databases(folder, cluster.as_ref(), "again") {
        committed_objects_are_there_after_reopening(&database).await;
    }
    for database in databases(folder, cluster.as_ref(), "audit") {
        the_whole_audit_is_stored_and_its_end_is_loaded(&database).await;
    }
    for database in databases(folder, cluster.as_ref(), "two") {
        of_two_writers_at_one_version_one_commits(&database).await;
    }
    for database in databases(folder, cluster.as_ref(), "turns") {
        the_writer_with_the_turn_reads_the_newest_version_and_commits(&database).await;
    }
}

async fn committed_objects_are_there_after_reopening(database: &DatabaseLocation) {
    let mut store = Store::open(database).await.unwrap();
    let first = [user(1, Some("{}")), user(2, Some("[]"))];
    assert_eq!(at(store.commit((0, 0), &first).await.unwrap()), Some(1));
    let second = [user(1, None), user(3, Some("7"))];
    assert_eq!(at(store.commit((1, 0), &second).await.unwrap()), Some(2));
    assert_eq!(store.tail(1).await.unwrap().written, 2);
    store.close().await;
    let mut store = Store::open(database).await.unwrap();
    let loaded = store.load().await.unwrap();
    assert_eq!((loaded.version, loaded.written), (2, 0), "another writer");
    let expected = [user(1, None), user(2, Some("[]")), user(3, Some("7"))];
    assert_eq!(loaded.objects, expected);
    assert_eq!(store.everything().await.unwrap(), expected);
    assert_eq!(store.tail(1).await.unwrap().objects, second);
    // More rows than one statement can take, with characters that JSON escapes.
    let many: Vec<Stored> = (10..210).map(|id| user(id, Some("{\"a\":\"\\u0000'é\"}"))).collect();
    assert_eq!(at(store.commit((2, 0), &many).await.unwrap()), Some(3));
    assert_eq!(store.tail(2).await.unwrap().objects, many);
    store.close().await;
}

async fn the_whole_audit_is_stored_and_its_end_is_loaded(database: &DatabaseLocation) {
    let mut store = Store::open(database).await.unwrap();
    let entry = |id| Stored { kind: Kind::AuditEntry, id, body: Some("{}".into()) };
    let all: Vec<Stored> = (1..=RECENT_AUDIT_ENTRIES as i64 + 5).map(entry).collect();
    store.commit((0, 0), &all).await.unwrap();
    store.commit((1, 0), &[user(1, Some("{}"))]).await.unwrap();
    let mut expected = all[5..].to_vec();
    expected.push(user(1, Some("{}")));
    assert_eq!(store.load().await.unwrap().objects, expected);
    assert_eq!(store.everything().await.unwrap().len(), all.len() + 1);
    store.close().await;
}

async fn of_two_writers_at_one_version_one_commits(database: &DatabaseLocation) {
    let mut one = Store::open(database).await.unwrap();
    let mut other = Store::open(database).await.unwrap();
    assert_eq!(at(one.commit((0, 0), &[user(1, Some("1"))]).await.unwrap()), Some(1));
    assert_eq!(at(other.commit((0, 0), &[user(1, Some("2"))]).await.unwrap()), None);
    assert_eq!(other.load().await.unwrap().objects, [user(1, Some("1"))]);
    assert_eq!(at(other.commit((1, 0), &[user(1, Some("2"))]).await.unwrap()), Some(2));
    assert_eq!(one.tail(1).await.unwrap().written, 1, "each has its own last version");
    one.close().await;
    other.close().await;
}

async fn the_writer_with_the_turn_reads_the_newest_version_and_commits(
    database: &DatabaseLocation,
) {
    let mut one = Store::open(database).await.unwrap();
    let mut other = Store::open(database).await.unwrap();
    one.commit((0, 0), &[user(1, Some("1"))]).await.unwrap();
    let turn = other.turn(0).await.unwrap();
    assert_eq!((turn.version, turn.objects), (1, vec![user(1, Some("1"))]));
    let (waits, wrote) = tokio::join!(
        async { at(one.commit((1, 0), &[user(2, Some("one"))]).await.unwrap()) },
        async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            at(other.commit((1, 0), &[user(2, Some("other"))]).await.unwrap())
        },
    );
    assert_eq!((waits, wrote), (None, Some(2)));
    // A turn ends without a commit.
    other.turn(2).await.unwrap();
    other.leave().await;
    assert_eq!(at(one.commit((2, 0), &[user(2, Some("one"))]).await.unwrap()), Some(3));
    one.close().await;
    other.close().await;
}

#[tokio::test]
async fn a_lease_is_renewed_read_and_ended_by_its_last_beat() {
    let Some(cluster) = Cluster::start() else { return };
    let database = DatabaseLocation::of_url(&cluster.database("leases"), false).unwrap();
    let (mut one, mut other) =
        (Store::open(&database).await.unwrap(), Store::open(&database).await.unwrap());
    let (here, there) = (one.replicas().unwrap(), other.replicas().unwrap());
    let lease = |beat, nodes: Option<&str>| Lease {
        id: here.own(),
        beat,
        change: 7,
        nodes: nodes.map(str::to_owned),
    };
    let first = here.poll(Some(lease(1, None))).await.unwrap();
    assert!(!first.is_there && first.leases.is_empty(), "a missing row is not renewed");
    here.poll(Some(lease(1, Some("3,5")))).await.unwrap();
    assert!(here.poll(Some(lease(2, None))).await.unwrap().is_there);
    assert_eq!(there.poll(None).await.unwrap().leases, [lease(2, None)]);
    assert_eq!(there.nodes(here.own()).await.unwrap().as_deref(), Some("3,5"));
    there.end(&lease(1, None)).await.unwrap();
    assert_eq!(there.poll(None).await.unwrap().leases.len(), 1, "it was renewed in the meantime");
    there.end(&lease(2, None)).await.unwrap();
    assert!(there.poll(None).await.unwrap().leases.is_empty());
    one.close().await;
    other.close().await;
}

#[tokio::test]
async fn the_first_claimed_key_of_a_network_stays() {
    let Some(cluster) = Cluster::start() else { return };
    let database = DatabaseLocation::of_url(&cluster.database("claims"), false).unwrap();
    let mut store = Store::open(&database).await.unwrap();
    store.claim("mkey:1").await.unwrap();
    store.claim("mkey:1").await.unwrap();
    let error = store.claim("mkey:2").await.unwrap_err().to_string();
    assert!(error.contains("noise.key"), "{error}");
    store.close().await;
}

#[tokio::test]
async fn a_read_only_database_is_read_and_refuses_changes() {
    let Some(cluster) = Cluster::start() else { return };
    let url = cluster.database("fixed");
    let database = DatabaseLocation::of_url(&url, false).unwrap();
    let mut store = Store::open(&database).await.unwrap();
    store.commit((0, 0), &[user(1, Some("1"))]).await.unwrap();
    store.close().await;
    cluster.run("ALTER DATABASE fixed SET default_transaction_read_only = on");
    let mut store = Store::open(&database).await.unwrap();
    assert_eq!(store.load().await.unwrap().version, 1);
    let error = store.commit((1, 0), &[user(1, Some("2"))]).await.unwrap_err();
    assert_eq!(failure_kind(&error), FailureKind::ReadOnly, "{error:#}");
    store.close().await;
}
