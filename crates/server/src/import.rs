//! `linerate-server import`, `export` and `backup`: a network comes from elsewhere, or is put into one
//! file.
//!
//! ```text
//!   headscale's database ──┐
//!   export, JSON ──────────┼──► Incoming ──► keys' files, then one commit into an empty store
//!   backup, SQLite ────────┘
//! ```

mod document;
mod headscale;

use std::{
    fs::{self, File},
    io::Read,
    os::unix::{
        fs::{MetadataExt, chown},
        net::UnixStream,
    },
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::Args;
use coordinator::{
    State,
    object::{Kind, Stored},
};
use sys::whole_file;
use tailnet::keys::MachineKey;

use self::document::Document;
use crate::{
    clock::now,
    commands::{self, Common},
    configuration::Configuration,
    files,
    store::{Backup, Committed, Database, Shared, Store},
};

/// What every file of SQLite begins with.
const SQLITE: &[u8; 16] = b"SQLite format 3\0";

/// What `import` is told.
#[derive(Args, Clone, Debug)]
pub struct Import {
    /// headscale's database, or what `export` or `backup` wrote.
    pub file: PathBuf,
    /// headscale's key of Noise; noise_private.key beside the database without it.
    #[arg(long, value_name = "FILE")]
    pub noise_key: Option<PathBuf>,
    /// headscale's key of its relay; derp_server_private.key beside the database without it, if it is
    /// there.
    #[arg(long, value_name = "FILE")]
    pub derp_key: Option<PathBuf>,
    /// headscale's policy, where that is a file, or another instead of it.
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
}

/// A network that comes from elsewhere.
struct Incoming {
    objects: Vec<Stored>,
    noise: MachineKey,
    /// Without it the relay has another key, which no client minds.
    relay: Option<MachineKey>,
    /// What is left out or has become something else, and why.
    remarks: Vec<String>,
}

/// Puts a network into the folder of a server that has none yet.
///
/// # Errors
/// The file is no network, or the folder has one: nothing was changed.
pub async fn import(common: &Common, asked: Import) -> anyhow::Result<()> {
    let configuration = common.configuration()?;
    let incoming = read(&asked, &configuration).await?;
    let (counts, remarks) = (counts(&incoming.objects), incoming.remarks.clone());
    put(&configuration, incoming).await?;
    let lines = [format!("imported {counts}")].into_iter().chain(remarks);
    commands::print(&lines.map(|line| line + "\n").collect::<String>())
}

async fn read(asked: &Import, configuration: &Configuration) -> anyhow::Result<Incoming> {
    let name = || asked.file.display().to_string();
    let mut beginning = [0; SQLITE.len()];
    let mut file = File::open(&asked.file).with_context(name)?;
    let is_sqlite = file.read_exact(&mut beginning).is_ok() && beginning == *SQLITE;
    if !is_sqlite {
        let text = fs::read_to_string(&asked.file).with_context(name)?;
        return Document::read(&text)?.into_incoming().with_context(name);
    }
    match Backup::open(&asked.file).await.with_context(name)? {
        Some(backup) => {
            let (noise, relay) = (backup.text(files::NOISE), backup.text(files::RELAY));
            let noise = noise.context("the backup has no key of Noise")?;
            Ok(Incoming {
                noise: noise.parse()?,
                relay: relay.map(str::parse).transpose()?,
                objects: backup.objects,
                remarks: Vec::new(),
            })
        }
        None => headscale::read(asked, configuration).await.with_context(name),
    }
}

/// The keys come first: an empty network has no client that knows others.
async fn put(configuration: &Configuration, incoming: Incoming) -> anyhow::Result<()> {
    let folder = &configuration.state_dir;
    if UnixStream::connect(&configuration.socket).is_ok() {
        bail!("the server runs: stop it first");
    }
    files::make_folder(folder)?;
    give_to_owner(configuration)?;
    let mut store = Store::open(&configuration.database()?).await?;
    let there = store.load().await?;
    if !there.objects.is_empty() {
        bail!("{} has a network already, and an import goes into none", place(configuration));
    }
    State::load(configuration.network_settings(), &incoming.objects, (0, 0), now())?;
    store.claim(&incoming.noise.public().to_string()).await?;
    let keys = [(files::NOISE, Some(incoming.noise)), (files::RELAY, incoming.relay)];
    for (name, key) in keys {
        if let Some(key) = key {
            let file = folder.join(name);
            whole_file::replace(&file, &key.text()).with_context(|| file.display().to_string())?;
        }
    }
    match store.commit((there.version, there.origin), &incoming.objects).await? {
        Committed::At(_) => {}
        Committed::Conflict => bail!("somebody else has written meanwhile"),
        Committed::Unknown(why) => return Err(why.context("whether it was written is not known")),
    }
    store.close().await;
    give_to_owner(configuration)
}

/// What root wrote belongs to the server's user, the owner of the server's folder, in which further
/// networks have theirs.
fn give_to_owner(configuration: &Configuration) -> anyhow::Result<()> {
    let folder = &configuration.state_dir;
    let mut all: Vec<PathBuf> =
        [files::STORE, files::NOISE, files::RELAY].map(|name| folder.join(name)).into();
    let mut of_server = folder.as_path();
    if configuration.name.is_some()
        && let Some(networks) = folder.parent()
    {
        all.extend([networks.to_owned(), folder.clone()]);
        of_server = networks.parent().unwrap_or(networks);
    }
    let owner = fs::metadata(of_server)?;
    for file in all {
        if fs::metadata(&file).is_ok_and(|own| own.uid() != owner.uid()) {
            chown(&file, Some(owner.uid()), Some(owner.gid()))
                .with_context(|| file.display().to_string())?;
        }
    }
    Ok(())
}

/// Writes all of the network into one file of JSON, for this user alone.
///
/// # Errors
/// There is none, or it cannot be written.
pub async fn export(common: &Common, file: &Path) -> anyhow::Result<()> {
    let (mut store, noise, relay) = kept(&common.configuration()?).await?;
    let objects = store.everything().await?;
    store.close().await;
    let text = Document::new(&objects, &noise, relay.as_ref())?.text()?;
    whole_file::replace(file, &text).with_context(|| file.display().to_string())?;
    commands::print(&format!("exported {}\n", counts(&objects)))
}

/// All objects of the network, while it is served.
///
/// # Errors
/// There is none.
pub async fn everything(common: &Common) -> anyhow::Result<Vec<Stored>> {
    let (mut store, ..) = kept(&common.configuration()?).await?;
    let objects = store.everything().await?;
    store.close().await;
    Ok(objects)
}

/// Copies the network into one file of SQLite, while it is served.
///
/// # Errors
/// There is none, there is such a file, or it cannot be written.
pub async fn back_up(common: &Common, file: &Path) -> anyhow::Result<()> {
    let (mut store, noise, relay) = kept(&common.configuration()?).await?;
    let (noise, relay) = (noise.text(), relay.map(|key| key.text()));
    let relay = relay.as_ref().map(|text| (files::RELAY, text.as_str()));
    let texts: Vec<_> = [(files::NOISE, noise.as_str())].into_iter().chain(relay).collect();
    store.back_up(file, &texts).await?;
    store.close().await;
    commands::print(&format!("{}\n", file.display()))
}

/// What a server keeps: its store and its keys.
async fn kept(
    configuration: &Configuration,
) -> anyhow::Result<(Store, MachineKey, Option<MachineKey>)> {
    let (folder, database) = (&configuration.state_dir, configuration.database()?);
    if let Database::File(file) = &database
        && !file.exists()
    {
        bail!("{}: there is no network yet", file.display());
    }
    let noise = files::known_key(&folder.join(files::NOISE))?;
    let noise = noise.with_context(|| format!("{} has no key of Noise", folder.display()))?;
    let relay = files::known_key(&folder.join(files::RELAY))?;
    Ok((Store::open(&database).await?, noise, relay))
}

/// Where the network is, in words.
fn place(configuration: &Configuration) -> String {
    match configuration.database() {
        Ok(Database::File(file)) => file.display().to_string(),
        _ => "the database".to_owned(),
    }
}

fn counts(objects: &[Stored]) -> String {
    let of = |kind: Kind| {
        objects.iter().filter(|object| object.kind == kind && object.body.is_some()).count()
    };
    let policy = if of(Kind::Policy) > 0 { "a policy" } else { "no policy" };
    format!(
        "{} users, {} nodes, {} pre-auth keys, {} API keys, {policy}",
        of(Kind::User),
        of(Kind::Node),
        of(Kind::PreAuthKey),
        of(Kind::ApiKey)
    )
}
