//! `linerate-server import`, `export` and `backup`: a network comes from elsewhere, or is put into one
//! file.
//!
//! ```text
//!   export, JSON ──────────┬──► Incoming ──► keys' files, then one commit into an empty store
//!   backup, SQLite ────────┤
//!   headscale's database ──┘──► the same, or objects that an earlier import left out
//! ```

mod document;
mod headscale;
mod tally;

use std::{
    fs::{self, File},
    io::Read,
    os::unix::{
        fs::{MetadataExt, chown},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
use clap::Args;
use coordinator::{
    State,
    object::{Kind, Stored},
};
use sys::atomic_file;
use tailnet::keys::MachineKey;

use self::{document::Document, tally::Tally};
use crate::{
    clock::now,
    commands::{self, Common},
    configuration::Configuration,
    files,
    store::{Backup, Committed, Database, Shared, Store},
};

/// The status of an import that left something out.
const INCOMPLETE: u8 = 3;

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
    /// Import headscale's network without a policy: every node reaches every other.
    #[arg(long, conflicts_with = "policy")]
    pub no_policy: bool,
    /// A table, or TABLE.COLUMN, of a newer headscale to leave out; may be given several times.
    #[arg(long, value_name = "NAME")]
    pub ignore: Vec<String>,
}

/// A network that comes from elsewhere.
struct Incoming {
    objects: Vec<Stored>,
    noise: MachineKey,
    /// Without it the relay has another key, which no client minds.
    relay: Option<MachineKey>,
    /// What is left out or has become something else, and why.
    remarks: Vec<String>,
    tally: Tally,
    /// Whether it may go into a network that has a part of it.
    completes: bool,
}

impl Incoming {
    /// A whole network.
    fn whole(objects: Vec<Stored>, noise: MachineKey, relay: Option<MachineKey>) -> Self {
        let tally = Tally::of(&objects);
        Self { objects, noise, relay, remarks: Vec::new(), tally, completes: false }
    }
}

/// Puts a network into the folder of a new server. A second import of headscale's network adds the objects
/// that the first left out. The status tells whether all was imported.
///
/// # Errors
/// The file contains no network, or the folder contains another one. Nothing was changed.
pub async fn import(common: &Common, asked: Import) -> anyhow::Result<ExitCode> {
    let configuration = common.configuration()?;
    if UnixStream::connect(&configuration.socket).is_ok() {
        bail!("the server runs: stop it first");
    }
    let there = there(&configuration).await?;
    let incoming = read(&asked, &configuration, &there).await?;
    let (tally, remarks) = (incoming.tally.clone(), incoming.remarks.clone());
    put(&configuration, incoming, there).await?;
    let lines = tally.lines().into_iter().chain(remarks);
    commands::print(&lines.map(|line| line + "\n").collect::<String>())?;
    Ok(if tally.is_incomplete() { ExitCode::from(INCOMPLETE) } else { ExitCode::SUCCESS })
}

/// The objects of the network before the import.
async fn there(configuration: &Configuration) -> anyhow::Result<Vec<Stored>> {
    let database = configuration.database()?;
    if let Database::File(file) = &database
        && !file.exists()
    {
        return Ok(Vec::new());
    }
    let mut store = Store::open(&database).await?;
    let is_empty = store.load().await?.objects.is_empty();
    let objects = if is_empty { Vec::new() } else { store.everything().await? };
    store.close().await;
    Ok(objects)
}

async fn read(
    asked: &Import,
    configuration: &Configuration,
    there: &[Stored],
) -> anyhow::Result<Incoming> {
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
            let (noise, relay) = (noise.parse()?, relay.map(str::parse).transpose()?);
            Ok(Incoming::whole(backup.objects, noise, relay))
        }
        None => headscale::read(asked, configuration, there).await.with_context(name),
    }
}

/// The keys come first: an empty network has no client that knows others.
async fn put(
    configuration: &Configuration,
    incoming: Incoming,
    mut all: Vec<Stored>,
) -> anyhow::Result<()> {
    let folder = &configuration.state_dir;
    let completes = !all.is_empty();
    if completes && !incoming.completes {
        bail!("{} has a network already, and an import goes into none", place(configuration));
    }
    files::make_folder(folder)?;
    give_to_owner(configuration)?;
    let mut store = Store::open(&configuration.database()?).await?;
    let tail = store.load().await?;
    let is_same =
        if completes { store.everything().await? == all } else { tail.objects.is_empty() };
    if !is_same {
        bail!("somebody else has written meanwhile");
    }
    all.extend(incoming.objects.iter().cloned());
    State::load(configuration.network_settings(), &all, (0, 0), now())?;
    store.claim(&incoming.noise.public().to_string()).await?;
    let keys = [(files::NOISE, Some(incoming.noise)), (files::RELAY, incoming.relay)];
    for (name, key) in keys {
        if let Some(key) = key.filter(|_| !completes) {
            let file = folder.join(name);
            atomic_file::replace(&file, &key.text()).with_context(|| file.display().to_string())?;
        }
    }
    match store.commit((tail.version, tail.origin), &incoming.objects).await? {
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
    atomic_file::replace(file, &text).with_context(|| file.display().to_string())?;
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
    let counts = tally::KINDS.map(|(kind, name)| format!("{} {name}", of(kind)));
    format!("{}, {policy}", counts.join(", "))
}
