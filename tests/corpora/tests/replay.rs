//! Replays every input of the corpora with the bodies of the fuzz targets in `fuzz/`.

#[expect(unreachable_pub, reason = "the fuzz targets use the same file from another crate")]
#[path = "../../../fuzz/src/bodies.rs"]
mod bodies;

use std::{fs, path::Path};

/// Names the file on which a body panicked.
struct Replaying<'a>(&'a Path);

impl Drop for Replaying<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("while replaying {}", self.0.display());
        }
    }
}

fn replay(target: &str, body: fn(&[u8])) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files = 0;
    for entry in fs::read_dir(&root).expect("every target has a corpus") {
        let path = entry.expect("the corpus can be listed").path();
        let data = fs::read(&path).expect("the corpus can be read");
        let _replaying = Replaying(&path);
        body(&data);
        files += 1;
    }
    assert!(files > 0, "{target} has an empty corpus");
}

macro_rules! corpora {
    ($($target:ident)+) => {
        $(
            #[test]
            fn $target() {
                replay(stringify!($target), bodies::$target);
            }
        )+

        #[test]
        fn every_corpus_is_replayed() {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/fuzz_targets");
            let mut targets: Vec<String> = fs::read_dir(root)
                .expect("there are targets")
                .map(|entry| entry.expect("the targets can be listed").path())
                .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
                .collect();
            targets.sort();
            assert_eq!(targets, [$(stringify!($target)),+]);
        }
    };
}

corpora! {
    aead allowed_ips coalesce conf_file control coordinator_requests delivery derp_frames disco dns
    exchange_message
    guardian_line helper http ip_header key_text magic_dns message namespace_line netstack network_map peer_relay policy
    portmap
    replay_filter segment socks streams stun tailnet_lock ts2021_records ts2021_stream tsmp uapi_request upnp
}
