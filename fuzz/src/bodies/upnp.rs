use std::net::Ipv4Addr;

use mesh::portmap::upnp_messages::{
    HttpLocation, Request, SearchResponse, Service, read_address, read_refusal,
};

const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);

/// Any datagram that answers a search, any description, any answer: their URLs always refer to the
/// gateway itself.
pub fn upnp(data: &[u8]) {
    let is_target = |place: &HttpLocation| {
        let ascii = place.path.bytes().all(|byte| byte.is_ascii_graphic());
        assert!(place.path.starts_with('/') && place.path.len() <= 512 && ascii && place.port != 0);
    };
    if let Some(found) = SearchResponse::read(data, GATEWAY) {
        is_target(&found.description);
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    let at = HttpLocation { port: 5000, path: "/rootDesc.xml".into() };
    if let Some(service) = Service::read(text, &at, GATEWAY) {
        is_target(&service.place);
        let (action, body) = service.encode(&Request::Address);
        assert!(action.is_ascii() && body.contains("GetExternalIPAddress"));
    }
    let address = read_address(text);
    assert!(address.is_none_or(|address| !address.is_loopback() && !address.is_unspecified()));
    let _ = read_refusal(text);
}
