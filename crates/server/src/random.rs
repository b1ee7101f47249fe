//! Random names.

/// A random name that cannot be guessed. It names a waiting registration or a server.
pub(crate) fn random_number() -> anyhow::Result<String> {
    let mut number = [0; 12];
    getrandom::fill(&mut number)?;
    Ok(base16ct::lower::encode_string(&number))
}
