//! Maps of relays: this server's own region, and others from files and URLs with Tailscale's
//! `derpmap` (`tailcfg.DERPMap`), in JSON with comments or, as in headscale, in YAML.
//!
//! ```text
//!   own region ──────────────────────────┐
//!   files, read at the start ────────────┼─► one map ──► State::set_relays ──► clients
//!   URLs, every hour ─────── state_dir ───┘
//! ```
//!
//! If a region has the number of the own region, its relays are appended to the own ones: they form
//! a mesh. Of other regions with the same number, the first counts.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use base16ct::lower::encode_string;
use hyper::Request;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use sys::atomic_file;
use tailnet::map_messages::{DerpNode, DerpRegion};
use tokio::{task::JoinSet, time::sleep};

use super::yaml;
use crate::{
    net::{fetch::Fetch, remote_url::RemoteUrl},
    network::NetworkState,
};

/// Interval between requests to a URL, and after a failure.
const REFRESH: Duration = Duration::from_secs(3600);
const AGAIN: Duration = Duration::from_secs(60);

/// Regions of a map, by their number as a string.
type Regions = Map<String, Value>;

/// All maps of a server.
#[derive(Clone, Debug)]
pub(crate) struct Maps {
    own: Regions,
    files: Vec<Regions>,
    urls: Vec<Source>,
}

/// A map that is fetched from a URL.
#[derive(Clone, Debug)]
struct Source {
    url: RemoteUrl,
    /// File with the last valid answer.
    file: PathBuf,
    regions: Regions,
}

impl Maps {
    /// Loads the own map, the maps in these files, and the cached maps of these URLs.
    ///
    /// # Errors
    /// A file cannot be read or is not a valid map. The error names the fault.
    pub(crate) fn new(
        own: &str,
        files: &[PathBuf],
        urls: &[RemoteUrl],
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let own = read(own.as_bytes())?;
        let of_file = |file: &PathBuf| {
            let name = || format!("derp.map_paths: {}", file.display());
            read(&fs::read(file).with_context(name)?).with_context(name)
        };
        let files = files.iter().map(of_file).collect::<anyhow::Result<_>>()?;
        let urls = urls.iter().map(|url| Source::cached(url, folder)).collect();
        Ok(Self { own, files, urls })
    }

    /// The merged map as JSON.
    pub(crate) fn text(&self) -> String {
        let mut regions = self.own.clone();
        let others = self.files.iter().chain(self.urls.iter().map(|source| &source.regions));
        for (number, region) in others.flatten() {
            match regions.get_mut(number) {
                None => drop(regions.insert(number.clone(), region.clone())),
                Some(there) if self.own.contains_key(number) => add_relays(there, region),
                Some(_) => {}
            }
        }
        regions.retain(|_, region| !region.is_null());
        Value::from_iter([("Regions", Value::Object(regions))]).to_string()
    }

    /// Fetches each URL now and periodically while the process runs. A failed request changes
    /// nothing.
    pub(crate) async fn follow(self, network: &NetworkState) {
        let urls = self.urls.iter().map(|source| source.url.clone());
        let fetches: Vec<Arc<(Fetch, RemoteUrl)>> =
            urls.map(|url| Arc::new((Fetch::new(!url.is_https()), url))).collect();
        let request = move |number: usize| {
            let pair = Arc::clone(&fetches[number]);
            async move { fetch(&pair.0, &pair.1).await }
        };
        let publish = |text: String| network.run(move |state, _| state.set_relays(text.clone()));
        self.follow_with(request, publish).await;
    }

    /// The same, where `request` fetches the URL with an index, and `publish` applies a map.
    async fn follow_with<A, T>(
        mut self,
        request: impl Fn(usize) -> A,
        publish: impl Fn(String) -> T,
    ) where
        A: Future<Output = anyhow::Result<Vec<u8>>> + Send + 'static,
        T: Future<Output = anyhow::Result<()>>,
    {
        let request_after = |rest: Duration, number: usize| {
            let answer = request(number);
            async move {
                sleep(rest).await;
                (number, answer.await)
            }
        };
        let mut requests: JoinSet<_> =
            (0..self.urls.len()).map(|number| request_after(Duration::ZERO, number)).collect();
        while let Some(answer) = requests.join_next().await {
            let Ok((number, answer)) = answer else { continue };
            let accepted = answer.and_then(|text| self.urls[number].take(&text));
            let published = publish(self.text()).await;
            let rest = match accepted.and(published) {
                Ok(()) => REFRESH,
                Err(error) => {
                    tracing::warn!("the relays of {}: {error:#}", self.urls[number].url);
                    AGAIN
                }
            };
            requests.spawn(request_after(rest, number));
        }
    }
}

impl Source {
    fn cached(url: &RemoteUrl, folder: &Path) -> Self {
        let hash = encode_string(&Sha256::digest(url.to_string())[..8]);
        let file = folder.join(format!("derp-map-{hash}.json"));
        let cached = fs::read(&file).ok().and_then(|text| read(&text).ok());
        Self { url: url.clone(), file, regions: cached.unwrap_or_default() }
    }

    /// Takes an answer. An invalid map changes nothing.
    fn take(&mut self, text: &[u8]) -> anyhow::Result<()> {
        let regions = read(text)?;
        if regions != self.regions {
            let text = Value::from_iter([("Regions", Value::Object(regions.clone()))]).to_string();
            self.regions = regions;
            let file = || self.file.display().to_string();
            atomic_file::replace(&self.file, &text).with_context(file)?;
        }
        Ok(())
    }
}

async fn fetch(fetch: &Fetch, url: &RemoteUrl) -> anyhow::Result<Vec<u8>> {
    let request = Request::get(url.uri()).body(Vec::new())?;
    let answer = fetch.within_time(request).await?;
    ensure!(answer.status().is_success(), "the answer is {}", answer.status());
    Ok(answer.into_body())
}

/// Appends the relays of a region that another region does not have yet.
fn add_relays(to: &mut Value, from: &Value) {
    let address =
        |relay: &Value| (relay["HostName"].clone(), relay["DERPPort"].as_u64().unwrap_or(443));
    let Some(relays) = to["Nodes"].as_array_mut() else { return };
    for relay in from["Nodes"].as_array().into_iter().flatten() {
        if !relays.iter().any(|other| address(other) == address(relay)) {
            relays.push(relay.clone());
        }
    }
}

/// Keys with string values, in the clients' spelling. headscale's files have them in lower case.
const TEXTS: [&str; 8] =
    ["RegionCode", "RegionName", "Name", "HostName", "CertName", "IPv4", "IPv6", "STUNTestIP"];
/// The other keys.
const KEYS: [&str; 12] = [
    "Regions",
    "RegionID",
    "Nodes",
    "Avoid",
    "NoMeasureNoHome",
    "Latitude",
    "Longitude",
    "STUNPort",
    "STUNOnly",
    "DERPPort",
    "InsecureForTests",
    "CanPort80",
];

/// Parses the regions of a map. A region that is `null` removes this region from later maps, as with
/// headscale.
///
/// # Errors
/// The line or key that is invalid, and the reason.
fn read(text: &[u8]) -> anyhow::Result<Regions> {
    let text = std::str::from_utf8(text)?;
    let text = text.trim_start_matches('\u{feff}');
    let begin = text.trim_start();
    ensure!(!begin.is_empty(), "it is empty");
    let is_json = ["{", "[", "//", "/*"].iter().any(|start| begin.starts_with(start));
    let map = if is_json { policy::read_json(text)? } else { yaml::read(text, plain)? };
    let regions = match with_names_of_clients(map) {
        Value::Object(mut map) => map.remove("Regions"),
        _ => None,
    };
    let mut regions = match regions {
        Some(Value::Object(regions)) => regions,
        Some(Value::Null) => Regions::new(),
        _ => bail!("Regions: an object of regions by number is missing"),
    };
    for (number, region) in regions.iter_mut().filter(|(_, region)| !region.is_null()) {
        check(number, region).with_context(|| format!("Regions.{number}"))?;
    }
    Ok(regions)
}

/// The value of a plain YAML scalar. Keys in [`TEXTS`] always have a string.
fn plain(key: &str, text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        _ if TEXTS.iter().any(|name| name.eq_ignore_ascii_case(key)) => text.into(),
        "true" | "True" | "TRUE" => true.into(),
        "false" | "False" | "FALSE" => false.into(),
        _ => text
            .parse::<i64>()
            .map(Value::from)
            .or_else(|_| text.parse::<f64>().map(Value::from))
            .unwrap_or_else(|_| text.into()),
    }
}

/// Converts keys to the clients' spelling, because some clients are case-sensitive, and removes
/// `null`s except those of regions.
fn with_names_of_clients(value: Value) -> Value {
    match value {
        Value::Array(list) => {
            let list = list.into_iter().filter(|value| !value.is_null());
            list.map(with_names_of_clients).collect()
        }
        Value::Object(members) => {
            let known = |key: String| {
                let mut names = TEXTS.iter().chain(&KEYS);
                names
                    .find(|name| name.eq_ignore_ascii_case(&key))
                    .map_or(key, |name| (*name).into())
            };
            let members = members.into_iter().map(|(key, value)| (known(key), value));
            let members = members.filter(|(key, value)| key == "Regions" || !value.is_null());
            let named = members.map(|(key, value)| match value {
                Value::Object(regions) if key == "Regions" => {
                    let named = |(number, region)| (number, with_names_of_clients(region));
                    (key, regions.into_iter().map(named).collect())
                }
                value => (key, with_names_of_clients(value)),
            });
            named.collect()
        }
        value => value,
    }
}

/// Checks a region. A region or relay without a number gets the number of its key.
fn check(number: &str, region: &mut Value) -> anyhow::Result<()> {
    let number: u16 = number.parse().ok().filter(|number| *number > 0).context("not a number")?;
    let region = region.as_object_mut().context("not an object")?;
    region.entry("RegionID").or_insert(number.into());
    for (at, node) in
        region.get_mut("Nodes").and_then(Value::as_array_mut).into_iter().flatten().enumerate()
    {
        let key = |name: &str| format!("Nodes[{at}].{name}");
        let node = node.as_object_mut().with_context(|| format!("Nodes[{at}]: not an object"))?;
        node.entry("RegionID").or_insert(number.into());
        let relay: DerpNode = parsed(node).with_context(|| format!("Nodes[{at}]"))?;
        ensure!(relay.region_id == number, "{}: not {number}", key("RegionID"));
        ensure!(!relay.host_name.is_empty(), "{}: it is missing", key("HostName"));
    }
    let read: DerpRegion = parsed(region)?;
    ensure!(read.region_id == number, "RegionID: not {number}");
    ensure!(!read.region_code.is_empty(), "RegionCode: it is missing");
    Ok(())
}

/// Parses an object as this type.
///
/// # Errors
/// The first key with a value of another type.
fn parsed<T: DeserializeOwned>(members: &Regions) -> anyhow::Result<T> {
    for (key, value) in members {
        let alone = Value::from_iter([(key.as_str(), value.clone())]);
        serde_json::from_value::<T>(alone).with_context(|| key.clone())?;
    }
    Ok(serde_json::from_value(Value::Object(members.clone()))?)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::json;
    use tokio::time::timeout;

    use super::*;

    const OWN: &str = r#"{"Regions":{"999":{"RegionID":999,"RegionCode":"own","Nodes":[
        {"Name":"999a","RegionID":999,"HostName":"a.example","DERPPort":443}]}}}"#;

    fn region(number: u16, hosts: &[&str]) -> Value {
        let node = |host: &&str| json!({ "Name": host, "RegionID": number, "HostName": host });
        let nodes: Vec<Value> = hosts.iter().map(node).collect();
        json!({ "RegionID": number, "RegionCode": format!("r{number}"), "Nodes": nodes,
                "Latitude": 52.5 })
    }

    fn map(regions: &[Value]) -> String {
        let by_number = |region: &Value| (region["RegionID"].to_string(), region.clone());
        let regions: Map<String, Value> = regions.iter().map(by_number).collect();
        json!({ "Regions": regions }).to_string()
    }

    fn hosts(maps: &Maps, number: &str) -> Vec<String> {
        let all: Value = serde_json::from_str(&maps.text()).unwrap();
        let nodes = all["Regions"][number]["Nodes"].as_array().cloned().unwrap_or_default();
        nodes.iter().map(|node| node["HostName"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_region_that_is_null_removes_that_region_of_later_maps() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["one", "other"].map(|name| folder.path().join(name));
        fs::write(&files[1], map(&[region(1, &["a"]), region(2, &["b"])])).unwrap();
        for text in ["regions:\n  1: null\n", "\u{feff}{\"regions\": {\"1\": null}}"] {
            fs::write(&files[0], text).unwrap();
            let maps = Maps::new(OWN, &files, &[], folder.path()).unwrap();
            assert_eq!((hosts(&maps, "1"), hosts(&maps, "2")), (Vec::new(), vec!["b".to_owned()]));
            let all: Value = serde_json::from_str(&maps.text()).unwrap();
            assert!(all["Regions"].as_object().unwrap().values().all(|region| !region.is_null()));
        }
    }

    #[test]
    fn maps_from_files_are_merged_and_extend_the_own_region() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["one", "other"].map(|name| folder.path().join(name));
        fs::write(&files[0], map(&[region(900, &["b"]), region(999, &["c.example"])])).unwrap();
        fs::write(&files[1], map(&[region(900, &["d"]), region(1, &["e"])])).unwrap();
        let maps = Maps::new(OWN, &files, &[], folder.path()).unwrap();
        assert_eq!(hosts(&maps, "999"), ["a.example", "c.example"]);
        assert_eq!((hosts(&maps, "900"), hosts(&maps, "1")), (vec!["b".into()], vec!["e".into()]));
        let all: Value = serde_json::from_str(&maps.text()).unwrap();
        assert_eq!(all["Regions"]["900"]["Latitude"], 52.5, "unknown keys are preserved");
    }

    #[test]
    fn maps_in_headscales_and_tailscales_forms_are_parsed_alike() {
        let expected = json!({ "900": {
            "RegionID": 900, "RegionCode": "no", "RegionName": "My Region", "Nodes": [
                { "Name": "900", "RegionID": 900, "HostName": "relay.example.com",
                  "IPv6": "2001:db8::1", "STUNPort": 0, "STUNOnly": false, "DERPPort": 443 },
            ],
        } });
        for text in [
            "# ours\nregions:\n  1: null # none\n  900:\n    regionid: 900\n    regioncode: no\n\
             \x20   regionname: My Region\n    nodes:\n      - name: 900\n        regionid: 900\n\
             \x20       hostname: relay.example.com\n        ipv4:\n        ipv6: 2001:db8::1\n\
             \x20       stunport: 0\n        stunonly: false\n        derpport: 443\n",
            r#"{
                // ours
                "regions": { "1": null, "900": {
                    "regionid": 900, "REGIONCODE": "no", "regionName": "My Region", "nodes": [null, {
                        "name": "900", "regionid": 900, "hostname": "relay.example.com", "ipv4": null,
                        "ipv6": "2001:db8::1", "stunport": 0, "stunonly": false, "derpport": 443,
                    }],
                } },
            }"#,
            r#"{"Regions":{"900":{"RegionCode":"no","RegionName":"My Region","Nodes":[{"Name":"900",
                "HostName":"relay.example.com","IPv6":"2001:db8::1","STUNPort":0,"STUNOnly":false,
                "DERPPort":443}]}}}"#,
        ] {
            let mut regions = read(text.as_bytes()).unwrap();
            regions.retain(|_, region| !region.is_null());
            assert_eq!(Value::Object(regions), expected, "{text}");
        }
        for text in [r#"{"Regions":null}"#, "regions:", "regions: {}"] {
            assert_eq!(read(text.as_bytes()).unwrap(), Regions::new(), "{text}");
        }
    }

    #[test]
    fn an_error_names_file_and_key() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("others.json");
        let mut wrong = region(900, &["b"]);
        for (pointer, value, expected) in [
            ("/Nodes/0/DERPPort", json!("x"), "Regions.900: Nodes[0]: DERPPort: invalid type"),
            ("/Nodes/0/HostName", json!(""), "Regions.900: Nodes[0].HostName"),
            ("/Nodes/0/RegionID", json!(7), "Regions.900: Nodes[0].RegionID"),
            ("/RegionID", json!(7), "Regions.900: RegionID"),
            ("/RegionCode", json!(""), "Regions.900: RegionCode"),
        ] {
            let sound = wrong.clone();
            wrong["Nodes"][0]["DERPPort"] = json!(443);
            *wrong.pointer_mut(pointer).unwrap() = value;
            fs::write(&file, json!({ "Regions": { "900": wrong } }).to_string()).unwrap();
            let error =
                Maps::new(OWN, std::slice::from_ref(&file), &[], folder.path()).unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains("others.json") && error.contains(expected), "{error}");
            wrong = sound;
        }
        let error = |file: &PathBuf| {
            let maps = Maps::new(OWN, std::slice::from_ref(file), &[], folder.path());
            format!("{:#}", maps.unwrap_err())
        };
        for (text, expected) in [
            ("", "it is empty"),
            ("<html>", "Regions: an object of regions"),
            ("{\"Regions\":", "line 1"),
            ("regions:\n\t900:", "line 2: a tab cannot indent"),
            (
                "regions:\n  900: {regioncode: x, nodes: [{hostname: a, derpport: many}]}",
                "Regions.900: Nodes[0]: DERPPort: invalid type",
            ),
            (r#"{"Regions":{"900":7}}"#, "Regions.900: not an object"),
            ("{}", "Regions: an object of regions by number is missing"),
            ("[]", "Regions: an object of regions by number is missing"),
            (r#"{"Regions":{"x":{}}}"#, "Regions.x: not a number"),
            (r#"{"Regions":{"0":{}}}"#, "Regions.0: not a number"),
        ] {
            fs::write(&file, text).unwrap();
            let error = error(&file);
            assert!(error.contains("others.json") && error.contains(expected), "{text}: {error}");
        }
        let error = error(&folder.path().join("none"));
        assert!(error.contains("none") && error.contains("No such file"), "{error}");
    }

    #[test]
    fn the_last_valid_map_of_a_url_survives_restarts_and_bad_answers() {
        let folder = tempfile::tempdir().unwrap();
        let urls = ["https://maps.example/derpmap".parse().unwrap()];
        let new = || Maps::new(OWN, &[], &urls, folder.path()).unwrap();
        let mut maps = new();
        assert!(hosts(&maps, "900").is_empty());
        maps.urls[0].take(map(&[region(900, &["b"])]).as_bytes()).unwrap();
        assert!(maps.urls[0].take(b"<html>").is_err());
        assert_eq!(hosts(&maps, "900"), ["b"]);
        assert_eq!(hosts(&new(), "900"), ["b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn each_url_has_its_own_schedule_and_a_failed_change_is_retried() {
        let folder = tempfile::tempdir().unwrap();
        let urls =
            ["https://dead.example/", "https://good.example/"].map(|url| url.parse().unwrap());
        let maps = Maps::new(OWN, &[], &urls, folder.path()).unwrap();
        let begun = tokio::time::Instant::now();
        let (requests, published) = (Arc::new(Mutex::new([vec![], vec![]])), Mutex::new(vec![]));
        let request = |number: usize| {
            let requests = Arc::clone(&requests);
            async move {
                requests.lock().unwrap()[number].push(begun.elapsed().as_secs());
                ensure!(number == 1, "it is dead");
                Ok(map(&[region(900, &["b"])]).into_bytes())
            }
        };
        let publish = |text: String| {
            let is_new = text.contains("900");
            let mut published = published.lock().unwrap();
            let is_first = is_new && !published.contains(&is_new);
            published.push(is_new);
            async move {
                ensure!(!is_first, "the store did not take the change");
                Ok(())
            }
        };
        let _ = timeout(REFRESH + AGAIN * 2, maps.follow_with(request, publish)).await;
        let requests = requests.lock().unwrap();
        assert_eq!(requests[0][..3], [0, 60, 120]);
        assert_eq!(requests[1], [0, 60, 60 + 3600]);
    }
}
