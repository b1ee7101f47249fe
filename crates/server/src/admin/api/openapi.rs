//! Description of the API as an OpenAPI 3 document.

use serde_json::{Map, Value, json};

use super::route::Route;

/// Schemas of requests and answers.
const SCHEMAS: &str = include_str!("schemas.json");

/// Describes these routes.
pub(super) fn describe(routes: &[Route]) -> Value {
    let schemas: Value = serde_json::from_str(SCHEMAS).expect("a test reads it");
    let mut paths = Map::new();
    for route in routes {
        let path = paths.entry(route.full_path()).or_insert_with(|| json!({}));
        path[route.method.as_str().to_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.0.3",
        "info": { "title": "linerate-server", "version": env!("CARGO_PKG_VERSION") },
        "security": [{ "key": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
        },
    })
}

fn operation(route: &Route) -> Value {
    let parameter = |name: &str, place: &str, what: &str| {
        json!({
            "name": name, "in": place, "required": place == "path", "description": what,
            "schema": { "type": "string" },
        })
    };
    let named = named(route.path).map(|name| parameter(name, "path", ""));
    let with = route.query.iter().map(|(name, what)| parameter(name, "query", what));
    let content = |schema: &str| {
        let schema = json!({ "$ref": format!("#/components/schemas/{schema}") });
        json!({ "application/json": { "schema": schema } })
    };
    let mut operation = json!({
        "summary": route.summary,
        "parameters": named.chain(with).collect::<Vec<_>>(),
        "responses": {
                        "200": { "description": "Success.", "content": content(route.answer) },
                        "default": { "description": "The request failed.", "content": content("Refusal") },
        },
    });
    if let Some(body) = route.body {
        operation["requestBody"] = json!({ "required": true, "content": content(body) });
    }
    operation
}

/// Names of the parameters in a path.
fn named(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::api::{BASE, routes::all};

    #[test]
    fn every_route_is_described_and_its_schemas_exist() {
        let routes = all();
        let document = describe(&routes);
        let schemas = &document["components"]["schemas"];
        let mut described = 0;
        for (path, methods) in document["paths"].as_object().unwrap() {
            described += methods.as_object().unwrap().len();
            assert!(path.starts_with(BASE), "{path}");
        }
        assert_eq!(described, routes.len());
        for route in &routes {
            let method = route.method.as_str().to_lowercase();
            let operation = &document["paths"][route.full_path()][method];
            assert_eq!(operation["summary"], route.summary);
            for schema in [Some(route.answer), route.body].into_iter().flatten() {
                assert!(schemas[schema].is_object(), "no schema {schema}");
            }
        }
    }

    #[test]
    fn schemas_refer_only_to_existing_schemas() {
        let schemas: Value = serde_json::from_str(SCHEMAS).unwrap();
        for part in SCHEMAS.split("#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(schemas[name].is_object(), "no schema {name}");
        }
    }
}
