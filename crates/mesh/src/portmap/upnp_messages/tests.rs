use proptest::prelude::*;

use super::*;

const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);

fn answer(location: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nCACHE-CONTROL: max-age=120\r\nST: upnp:rootdevice\r\n\
         Location: {location}\r\nBOOTID.UPNP.ORG: 17\r\n\r\n"
    )
}

fn place(port: u16, path: &str) -> HttpLocation {
    HttpLocation { port, path: path.to_owned() }
}

fn description(service: &str, url: &str, base: &str) -> String {
    format!(
        "<?xml version=\"1.0\"?>\n<root xmlns=\"urn:schemas-upnp-org:device-1-0\">{base}<device>\
         <serviceList><service><serviceType>urn:schemas-upnp-org:service:Layer3Forwarding:1\
         </serviceType><controlURL>/other</controlURL></service></serviceList><deviceList><device>\
         <serviceList><service><serviceType>\n{service} </serviceType><controlURL>{url}</controlURL>\
         </service></serviceList></device></deviceList></device></root>"
    )
}

fn service(text: &str) -> Option<(u16, String)> {
    let service = Service::read(text, &place(5000, "/a/rootDesc.xml"), GATEWAY)?;
    Some((service.place.port, service.place.path))
}

const IP1: &str = "urn:schemas-upnp-org:service:WANIPConnection:1";

#[test]
fn answer_to_a_search_is_read() {
    let found =
        SearchResponse::read(answer("http://192.168.0.1:5000/rootDesc.xml").as_bytes(), GATEWAY);
    let expected =
        SearchResponse { description: place(5000, "/rootDesc.xml"), boot: Some("17".into()) };
    assert_eq!(found, Some(expected));
    let found =
        SearchResponse::read(b"HTTP/1.1 200 OK\r\nlocation:http://192.168.0.1\r\n\r\n", GATEWAY);
    assert_eq!(found, Some(SearchResponse { description: place(80, "/"), boot: None }));
}

#[test]
fn description_on_another_host_is_refused() {
    for elsewhere in [
        "http://192.168.0.9:5000/a",
        "http://router.lan/a",
        "http://user@192.168.0.1/a",
        "https://192.168.0.1/a",
        "http://192.168.0.1:0/a",
        "http://192.168.0.1:99999/a",
        "http://192.168.0.1/a b",
        "http://[::1]/a",
        "/a",
    ] {
        assert_eq!(
            SearchResponse::read(answer(elsewhere).as_bytes(), GATEWAY),
            None,
            "{elsewhere}"
        );
    }
    let refused = answer("http://192.168.0.1/a").replace("200", "404");
    assert_eq!(SearchResponse::read(refused.as_bytes(), GATEWAY), None);
}

#[test]
fn control_url_is_read_from_the_description() {
    let at = |url: &str, base: &str| service(&description(IP1, url, base));
    assert_eq!(at("/ctl/IPConn", ""), Some((5000, "/ctl/IPConn".into())));
    assert_eq!(at("IPConn", ""), Some((5000, "/a/IPConn".into())));
    assert_eq!(at("http://192.168.0.1:80/c", ""), Some((80, "/c".into())));
    let base = "<URLBase>http://192.168.0.1:49152</URLBase>";
    assert_eq!(at("/c", base), Some((49152, "/c".into())));
    assert_eq!(at("http://203.0.113.1/c", ""), None);
    assert_eq!(service(&description("urn:schemas-upnp-org:service:WANCommon:1", "/c", "")), None);
}

#[test]
fn newest_service_is_selected() {
    let of = |kind: Kind, url: &str| {
        let name = kind.name();
        format!(
            "<service><serviceType>{name}</serviceType><controlURL>{url}</controlURL></service>"
        )
    };
    let all = [of(Kind::Ppp1, "/p"), of(Kind::Ip1, "/1"), of(Kind::Ip2, "/2")];
    for (count, path) in [(1, "/p"), (2, "/1"), (3, "/2")] {
        let text = format!("<root>{}</root>", all[..count].concat());
        assert_eq!(service(&text).map(|(_, path)| path).as_deref(), Some(path));
    }
}

#[test]
fn requests_have_the_form_that_routers_expect() {
    let service = Service { kind: Kind::Ip1, place: place(80, "/c") };
    let own = Ipv4Addr::new(192, 168, 0, 2);
    let map = Request::Map { external: 4000, own, internal: 41641, lifetime: 7200 };
    let (action, body) = service.encode(&map);
    assert_eq!(action, format!("\"{IP1}#AddPortMapping\""));
    let document = Document::parse(&body).unwrap();
    let action = document.descendants().find(|node| is(node, "AddPortMapping")).unwrap();
    assert_eq!(action.tag_name().namespace(), Some(IP1));
    let arguments: Vec<_> = action
        .children()
        .map(|child| (child.tag_name().name(), child.text().unwrap_or_default()))
        .collect();
    let expected = [
        ("NewRemoteHost", ""),
        ("NewExternalPort", "4000"),
        ("NewProtocol", "UDP"),
        ("NewInternalPort", "41641"),
        ("NewInternalClient", "192.168.0.2"),
        ("NewEnabled", "1"),
        ("NewPortMappingDescription", "linerate"),
        ("NewLeaseDuration", "7200"),
    ];
    assert_eq!(arguments, expected);
    let (action, body) = service.encode(&Request::Delete { external: 4000 });
    assert_eq!(action, format!("\"{IP1}#DeletePortMapping\""));
    assert!(body.contains("<NewExternalPort>4000</NewExternalPort>"), "{body}");
    assert!(Document::parse(&service.encode(&Request::Address).1).is_ok());
}

#[test]
fn answers_are_read() {
    let soap = |inside: &str| {
        format!(
            "<s:Envelope xmlns:s=\"http://schemas.xmlsoap.org/soap/envelope/\"><s:Body>{inside}\
             </s:Body></s:Envelope>\0"
        )
    };
    let address = |text: &str| {
        read_address(&soap(&format!(
            "<u:R xmlns:u=\"{IP1}\"><NewExternalIPAddress>{text}</NewExternalIPAddress></u:R>"
        )))
    };
    assert_eq!(address("203.0.113.1"), Some(Ipv4Addr::new(203, 0, 113, 1)));
    assert_eq!(address("0.0.0.0"), None);
    assert_eq!(address(""), None);
    let refusal = |code: &str| {
        read_refusal(&soap(&format!(
            "<s:Fault><detail><UPnPError xmlns=\"urn:schemas-upnp-org:control-1-0\"><errorCode>\
             {code}</errorCode></UPnPError></detail></s:Fault>"
        )))
    };
    assert_eq!(refusal("718"), Some(Refusal::Taken));
    assert_eq!(refusal("725"), Some(Refusal::OnlyPermanent));
    assert_eq!(refusal(" 501 "), Some(Refusal::Other(501)));
    assert_eq!(read_refusal(&soap("<u:R xmlns:u=\"a\"/>")), None);
}

#[test]
fn expanding_xml_is_refused() {
    let bomb = "<!DOCTYPE a [<!ENTITY b \"bbbbbbbbbb\"><!ENTITY c \"&b;&b;&b;&b;\">]><a>&c;</a>";
    assert!(parse(bomb).is_none());
    let deep = format!("{}{}", "<a>".repeat(20_000), "</a>".repeat(20_000));
    assert!(parse(&deep).is_none());
    let wide = format!("<a>{}</a>", "<b/>".repeat(11_000));
    assert!(parse(&wide).is_none());
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        text in "[<>/a-c&;=\"! \n]{0,200}",
    ) {
        let _ = SearchResponse::read(&bytes, GATEWAY);
        let _ = Service::read(&text, &place(1, "/"), GATEWAY);
        let _ = (read_address(&text), read_refusal(&text));
    }
}
