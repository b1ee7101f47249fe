//! The node key, its file, and the login that it seals.
//!
//! The file has two slots. The slot with the greater number is valid, and the other one is written,
//! so a power failure during a write leaves the previous key.
//!
//! ```text
//!   slot: number (8 bytes)  key (32; all zero without a key)  the same number (8)
//! ```

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    sync::Arc,
};

use config::uapi::Change;
use getrandom::{SysRng, rand_core::UnwrapErr};
use node::Node;
use tailnet::{derp, keys::NodePublic};
use wg::{PrivateKey, config::DeviceChange};
use zeroize::Zeroizing;

const KEY: usize = 32;
const SLOT: usize = 8 + KEY + 8;

type Bytes = Box<Zeroizing<[u8; KEY]>>;

/// The open file of the node key.
#[derive(Debug)]
pub struct KeyFile {
    file: File,
    /// The number of the valid slot.
    number: u64,
}

impl KeyFile {
    /// Opens or creates the file. It is locked, because one process at a time may use the key.
    ///
    /// # Errors
    /// It cannot be read and written, or another process has it
    /// ([`WouldBlock`](io::ErrorKind::WouldBlock)).
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        file.try_lock()?;
        Ok(Self { file, number: 0 })
    }

    fn read(&mut self) -> io::Result<Option<Bytes>> {
        let mut slots = Zeroizing::new([0; 2 * SLOT]);
        self.file.seek(SeekFrom::Start(0))?;
        let mut filled = 0;
        while filled < slots.len() {
            match self.file.read(&mut slots[filled..])? {
                0 => break,
                len => filled += len,
            }
        }
        let mut key = None;
        for slot in slots.chunks_exact(SLOT) {
            let number = |at: usize| slot[at..at + 8].try_into().map(u64::from_le_bytes);
            let (Ok(first), Ok(last)) = (number(0), number(8 + KEY)) else { continue };
            if first == last && first > self.number {
                self.number = first;
                let mut bytes = Bytes::default();
                bytes.copy_from_slice(&slot[8..8 + KEY]);
                key = Some(bytes).filter(|bytes| ***bytes != [0; KEY]);
            }
        }
        Ok(key)
    }

    /// Removes the key from both slots.
    fn erase(&mut self) -> io::Result<()> {
        self.write(&[0; KEY])?;
        self.write(&[0; KEY])
    }

    fn write(&mut self, key: &[u8; KEY]) -> io::Result<()> {
        let number = self.number + 1;
        let mut slot = Zeroizing::new([0; SLOT]);
        slot[..8].copy_from_slice(&number.to_le_bytes());
        slot[8..8 + KEY].copy_from_slice(key);
        slot[8 + KEY..].copy_from_slice(&number.to_le_bytes());
        let at = (number % 2) * SLOT as u64;
        self.file.seek(SeekFrom::Start(at))?;
        self.file.write_all(&*slot)?;
        self.file.sync_data()?;
        self.number = number;
        Ok(())
    }
}

/// The node key, and a candidate for the next one.
pub(super) struct Keys {
    file: KeyFile,
    own: Option<Bytes>,
    candidate: Option<Bytes>,
}

impl Keys {
    /// Reads the key from the file and sets it in the node. An unreadable file counts as empty.
    pub(super) fn new(mut file: KeyFile, node: &Arc<Node>) -> Self {
        let own = file.read().unwrap_or_else(|error| {
            tracing::error!(%error, "the node key cannot be read: this machine has to join again");
            None
        });
        let keys = Self { file, own, candidate: None };
        keys.apply(node);
        keys
    }

    /// The public key; all zero without a key.
    pub(super) fn public(&self) -> NodePublic {
        self.own.as_ref().map(|own| public(own)).unwrap_or_default()
    }

    /// Creates a key, or returns the unused candidate.
    pub(super) fn make_candidate(&mut self) -> NodePublic {
        let candidate = self.candidate.get_or_insert_with(|| {
            let mut bytes = Bytes::default();
            getrandom::fill(&mut **bytes).expect("the kernel has randomness once it has started");
            bytes
        });
        public(candidate)
    }

    /// Makes the candidate the node key, if it has this public half.
    ///
    /// # Errors
    /// The file cannot be written. The key is used nevertheless, until the process ends.
    pub(super) fn use_candidate(&mut self, key: NodePublic, node: &Arc<Node>) -> io::Result<()> {
        let Some(candidate) = self.candidate.take_if(|candidate| public(candidate) == key) else {
            return Ok(());
        };
        let written = self.file.write(&candidate);
        self.own = Some(candidate);
        self.apply(node);
        written
    }

    /// Removes the key.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn remove(&mut self, node: &Arc<Node>) -> io::Result<()> {
        (self.own, self.candidate) = (None, None);
        self.apply(node);
        self.file.erase()
    }

    /// Seals the contents of a relay login; empty without a key.
    pub(super) fn seal_login(&self, server: &[u8; 32]) -> Vec<u8> {
        let Some(own) = &self.own else { return Vec::new() };
        derp::seal_login(own, server, &mut UnwrapErr(SysRng))
    }

    fn apply(&self, node: &Arc<Node>) {
        let key = self.own.as_ref().map(|own| PrivateKey::from_bytes(own));
        let device = DeviceChange { private_key: Some(key), ..DeviceChange::default() };
        if let Err(error) = node.apply(Change { device, ..Change::default() }) {
            tracing::error!(%error, "the node key was refused");
        }
    }
}

fn public(key: &[u8; KEY]) -> NodePublic {
    NodePublic(*PrivateKey::from_bytes(key).public_key().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> (KeyFile, Option<[u8; KEY]>) {
        let mut file = KeyFile::open(path).unwrap();
        let key = file.read().unwrap().map(|key| **key);
        (file, key)
    }

    #[test]
    fn last_written_key_counts_and_a_torn_slot_does_not() {
        let path = std::env::temp_dir().join(format!("linerate-node-key-{}", std::process::id()));
        let (mut file, key) = open(&path);
        assert_eq!(key, None);
        file.write(&[1; KEY]).unwrap();
        file.write(&[2; KEY]).unwrap();
        let taken = KeyFile::open(&path).map(drop).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::WouldBlock, "it is one node's at a time");
        drop(file);
        assert_eq!(open(&path).1, Some([2; KEY]));
        let mut torn = std::fs::read(&path).unwrap();
        assert_eq!(torn.len(), 2 * SLOT);
        torn[SLOT - 1] ^= 1;
        std::fs::write(&path, &torn).unwrap();
        assert_eq!(open(&path).1, Some([1; KEY]), "the previous key remains");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn removed_key_is_in_no_slot() {
        let path = std::env::temp_dir().join(format!("linerate-no-key-{}", std::process::id()));
        let (mut file, _) = open(&path);
        file.write(&[7; KEY]).unwrap();
        file.erase().unwrap();
        drop(file);
        assert_eq!(open(&path).1, None);
        assert!(!std::fs::read(&path).unwrap().contains(&7));
        std::fs::remove_file(&path).unwrap();
    }
}
