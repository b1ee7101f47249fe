//! The line to a helper process: what is read is what is written, and nothing else is.

use sys::process::helper::{Charge, ENTRIES, Entry, Message};

/// The first message, and any behind it.
pub fn helper(data: &[u8]) {
    if let Some(charge) = Charge::parse(data) {
        assert!(charge.files.iter().all(|path| path.is_absolute()));
        assert_eq!(charge.encode().expect("it was read"), data);
    }
    match Message::parse(data) {
        Some(Message::Verb(verb)) => assert_eq!(verb.encode(), data),
        Some(Message::Entries(entries)) => {
            assert!((1..=ENTRIES).contains(&entries.len()));
            assert_eq!(Entry::encode_all(&entries), data);
        }
        Some(Message::End) => assert_eq!(data, Message::END),
        None => {}
    }
}
