//! `linerate-server import`, `export` and `backup`.
//!
//! ```text
//!   export, JSON ──────────┬──► Incoming ──► files of keys, then one commit into an empty store
//!   backup, SQLite ────────┤
//!   headscale's database ──┘──► the same, or the objects that an earlier import left out
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
    process::files,
    store::{Backup, Committed, Database, DatabaseLocation, Store},
};

/// Exit status of an import that left something out.
const INCOMPLETE: u8 = 3;

/// First bytes of every SQLite file.
const SQLITE: &[u8; 16] = b"SQLite format 3\0";

/// Arguments of `import`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Import {
    /// headscale's database, or a file written by `export` or `backup`.
    pub file: PathBuf,
    /// headscale's Noise key. By default, noise_private.key in the database's folder.
    #[arg(long, value_name = "FILE")]
    pub noise_key: Option<PathBuf>,
    /// headscale's relay key. By default, derp_server_private.key in the database's folder, if it
    /// exists.
    #[arg(long, value_name = "FILE")]
    pub derp_key: Option<PathBuf>,
    /// headscale's policy file, or another policy to use instead.
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Import headscale's network without a policy: every node can reach every other node.
    #[arg(long, conflicts_with = "policy")]
    pub no_policy: bool,
    /// A table, or TABLE.COLUMN, of a newer headscale to ignore. Can be given several times.
    #[arg(long, value_name = "NAME")]
    pub ignore: Vec<String>,
}

/// A network that is imported.
struct Incoming {
    objects: Vec<Stored>,
    noise: MachineKey,
    /// If absent, the relay gets a new key. Clients accept this.
    relay: Option<MachineKey>,
    /// Notes about omitted and changed objects.
    remarks: Vec<String>,
    tally: Tally,
    /// Whether it can be merged into a network that has a part of it.
    completes: bool,
}

impl Incoming {
    /// A complete network.
    fn whole(objects: Vec<Stored>, noise: MachineKey, relay: Option<MachineKey>) -> Self {
        let tally = Tally::of(&objects);
        Self { objects, noise, relay, remarks: Vec::new(), tally, completes: false }
    }
}

/// Imports a network into the state of a new server. A second import of headscale's network adds the
/// objects that the first one left out. The exit status shows whether everything was imported.
///
/// # Errors
/// The file contains no network, or the state contains another one. Nothing was changed.
pub(crate) async fn import(common: &Common, arguments: Import) -> anyhow::Result<ExitCode> {
    let configuration = common.configuration()?;
    if UnixStream::connect(&configuration.socket).is_ok() {
        bail!("the server is running: stop it first");
    }
    let there = existing_objects(&configuration).await?;
    let incoming = read(&arguments, &configuration, &there).await?;
    let (tally, remarks) = (incoming.tally.clone(), incoming.remarks.clone());
    put(&configuration, incoming, there).await?;
    let lines = tally.lines().into_iter().chain(remarks);
    commands::print(&lines.map(|line| line + "\n").collect::<String>())?;
    Ok(if tally.is_incomplete() { ExitCode::from(INCOMPLETE) } else { ExitCode::SUCCESS })
}

/// The objects of the network before the import.
async fn existing_objects(configuration: &Configuration) -> anyhow::Result<Vec<Stored>> {
    let database = configuration.database()?;
    if let DatabaseLocation::File(file) = &database
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
    arguments: &Import,
    configuration: &Configuration,
    there: &[Stored],
) -> anyhow::Result<Incoming> {
    let name = || arguments.file.display().to_string();
    let mut beginning = [0; SQLITE.len()];
    let mut file = File::open(&arguments.file).with_context(name)?;
    let is_sqlite = file.read_exact(&mut beginning).is_ok() && beginning == *SQLITE;
    if !is_sqlite {
        let text = fs::read_to_string(&arguments.file).with_context(name)?;
        return Document::read(&text)?.into_incoming().with_context(name);
    }
    match Backup::open(&arguments.file).await.with_context(name)? {
        Some(backup) => {
            let (noise, relay) = (backup.text(files::NOISE), backup.text(files::RELAY));
            let noise = noise.context("the backup lacks a Noise key")?;
            let (noise, relay) = (noise.parse()?, relay.map(str::parse).transpose()?);
            Ok(Incoming::whole(backup.objects, noise, relay))
        }
        None => headscale::read(arguments, configuration, there).await.with_context(name),
    }
}

/// Writes the network. The keys are written first: no client knows a server with an empty network by
/// its key.
async fn put(
    configuration: &Configuration,
    incoming: Incoming,
    mut all: Vec<Stored>,
) -> anyhow::Result<()> {
    let folder = &configuration.state_dir;
    let completes = !all.is_empty();
    if completes && !incoming.completes {
        bail!("{} already contains a network: import into an empty one", place(configuration));
    }
    files::make_folder(folder)?;
    give_to_owner(configuration)?;
    let mut store = Store::open(&configuration.database()?).await?;
    let tail = store.load().await?;
    let is_same =
        if completes { store.everything().await? == all } else { tail.objects.is_empty() };
    if !is_same {
        bail!("another process has written in the meantime");
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
        Committed::Conflict => bail!("another process has written in the meantime"),
        Committed::Unknown(why) => {
            return Err(why.context("it is unknown whether the network was written"));
        }
    }
    store.close().await;
    give_to_owner(configuration)
}

/// Gives files that root wrote to the owner of the server's state folder, which contains the folders
/// of further networks.
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

/// Exports the network into one JSON file, which only this user can read.
///
/// # Errors
/// There is no network, or the file cannot be written.
pub(crate) async fn export(common: &Common, file: &Path) -> anyhow::Result<()> {
    let (mut store, noise, relay) = open_existing(&common.configuration()?).await?;
    let objects = store.everything().await?;
    store.close().await;
    let text = Document::new(&objects, &noise, relay.as_ref())?.text()?;
    atomic_file::replace(file, &text).with_context(|| file.display().to_string())?;
    commands::print(&format!("exported {}\n", counts(&objects)))
}

/// All objects of the network. The server may be running.
///
/// # Errors
/// There is no network.
pub(crate) async fn everything(common: &Common) -> anyhow::Result<Vec<Stored>> {
    let (mut store, ..) = open_existing(&common.configuration()?).await?;
    let objects = store.everything().await?;
    store.close().await;
    Ok(objects)
}

/// Copies the network into one SQLite file. The server may be running.
///
/// # Errors
/// There is no network, the file exists already, or it cannot be written.
pub(crate) async fn back_up(common: &Common, file: &Path) -> anyhow::Result<()> {
    let (mut store, noise, relay) = open_existing(&common.configuration()?).await?;
    let (noise, relay) = (noise.text(), relay.map(|key| key.text()));
    let relay = relay.as_ref().map(|text| (files::RELAY, text.as_str()));
    let texts: Vec<_> = [(files::NOISE, noise.as_str())].into_iter().chain(relay).collect();
    store.back_up(file, &texts).await?;
    store.close().await;
    commands::print(&format!("{}\n", file.display()))
}

/// Opens the store of an existing network, and reads its keys.
async fn open_existing(
    configuration: &Configuration,
) -> anyhow::Result<(Store, MachineKey, Option<MachineKey>)> {
    let (folder, database) = (&configuration.state_dir, configuration.database()?);
    if let DatabaseLocation::File(file) = &database
        && !file.exists()
    {
        bail!("{}: no network exists yet", file.display());
    }
    let noise = files::read_key(&folder.join(files::NOISE))?;
    let noise = noise.with_context(|| format!("{} lacks a Noise key", folder.display()))?;
    let relay = files::read_key(&folder.join(files::RELAY))?;
    Ok((Store::open(&database).await?, noise, relay))
}

/// Location of the network, for messages.
fn place(configuration: &Configuration) -> String {
    match configuration.database() {
        Ok(DatabaseLocation::File(file)) => file.display().to_string(),
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
