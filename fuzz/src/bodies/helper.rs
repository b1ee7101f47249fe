//! Messages to a helper process: a parsed message encodes to the same bytes.

use sys::process::helper::{Entry, Job, MAX_ENTRIES, Message};

/// The first message; further bytes may follow.
pub fn helper(data: &[u8]) {
    if let Some(job) = Job::parse(data) {
        assert!(job.files.iter().all(|path| path.is_absolute()));
        assert_eq!(job.encode().expect("it was read"), data);
    }
    match Message::parse(data) {
        Some(Message::Command(command)) => assert_eq!(command.encode(), data),
        Some(Message::Entries(entries)) => {
            assert!((1..=MAX_ENTRIES).contains(&entries.len()));
            assert_eq!(Entry::encode_all(&entries), data);
        }
        Some(Message::End) => assert_eq!(data, Message::END),
        None => {}
    }
}
