//! `genkey`, `genpsk` and `pubkey`, as in wg(8).

use std::{
    io::{self, IsTerminal, Read},
    os::fd::AsFd,
};

use anyhow::Context;
use getrandom::{SysRng, rand_core::UnwrapErr};
use wg::{PresharedKey, PrivateKey};
use zeroize::Zeroizing;

pub(crate) fn genkey() -> anyhow::Result<()> {
    warn_of_readers();
    println!("{}", *PrivateKey::generate(&mut UnwrapErr(SysRng)).to_base64());
    Ok(())
}

pub(crate) fn genpsk() -> anyhow::Result<()> {
    warn_of_readers();
    println!("{}", *PresharedKey::generate(&mut UnwrapErr(SysRng)).to_base64());
    Ok(())
}

pub(crate) fn pubkey() -> anyhow::Result<()> {
    let mut text = Zeroizing::new(String::new());
    io::stdin().take(1024).read_to_string(&mut text).context("standard input")?;
    let key = PrivateKey::from_base64(text.trim()).context("standard input")?;
    println!("{}", key.public_key().to_base64());
    Ok(())
}

/// Warns if the secret is written to a file that others may read.
fn warn_of_readers() {
    use std::os::unix::fs::MetadataExt;
    let stdout = io::stdout();
    let Ok(fd) = stdout.as_fd().try_clone_to_owned() else { return };
    let Ok(file) = std::fs::File::from(fd).metadata() else { return };
    if !stdout.is_terminal() && file.is_file() && file.mode() & 0o007 != 0 {
        eprintln!(
            "Warning: writing to world accessible file.\nConsider setting the umask to 077 and trying again."
        );
    }
}
