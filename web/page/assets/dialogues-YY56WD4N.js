import{a as V}from"./chunk-4PC5ZWBK.js";import{a as q,c as y}from"./chunk-KJWCTRZQ.js";import"./chunk-JCHIK34N.js";import{d as $,f as i}from"./chunk-IPJHVCMR.js";import{c as S,m as v,n as M,w as L}from"./chunk-LXL7FYJ5.js";import{g as C,h as f,i as N,k as D,l as O,m as E,o as h}from"./chunk-QSRI3Y6M.js";import{a as x,c as m,i as g,n as T,o as A}from"./chunk-HOXZUWDE.js";import"./chunk-J3TXAQ4B.js";import{a as I,d as P}from"./chunk-FXCU7NM7.js";import"./chunk-3TA2XFFB.js";import"./chunk-Z24K5D3F.js";import"./chunk-BWZWJJRS.js";import"./chunk-E3BQTMXS.js";import{c,e as w,g as k}from"./chunk-CEAMIZB5.js";import{d as b,g as e}from"./chunk-D7T4XN55.js";function p({title:o,onClose:t,children:r}){let n=w(null),a=k();return c(()=>n.current?.showModal(),[]),e("dialog",{ref:n,"aria-labelledby":a,onClose:t,onClick:u=>{u.target===n.current&&t()},children:e("div",{class:"dialog-body",children:[e("header",{children:[e("h2",{id:a,children:o}),e(T,{icon:"close",label:"Close",onClick:t})]}),r]})})}function l({text:o,label:t}){return e("div",{class:"snippet",children:[e("pre",{tabIndex:0,children:o}),e(A,{text:()=>o,...t!==void 0&&{label:t}})]})}var Y=["curl","Python","JavaScript"];function H(){let o=m("curl");return e(p,{title:"Connect an app",onClose:i,children:[e("p",{children:"Any program that speaks OpenAI’s API can use this server. Give it this base URL:"}),e(l,{text:U()}),e("p",{class:"faint",children:[g.value.apiKey===""?"Without a key on the server, any text will do as the API key.":"Use the API key of this server."," ","Anthropic’s API is under the same address without ",e("code",{children:"/v1"}),"."]}),e("div",{class:"tabs",role:"group","aria-label":"Language",children:Y.map(t=>e("button",{type:"button","aria-pressed":t===o.value,onClick:()=>o.value=t,children:t},t))}),e(l,{text:X(o.value)})]})}function U(){return new URL("v1",document.baseURI).href}function X(o){let[t,r]=[U(),N()?.id??"default"],n=g.value.apiKey!=="";switch(o){case"curl":return Z(t,r,n);case"Python":return j(t,r,n);case"JavaScript":return ee(t,r,n)}}function Z(o,t,r){let n=JSON.stringify({model:t,stream:!0,messages:[{role:"user",content:"Hello!"}]});return`curl -N ${o}/chat/completions${r?' -H "authorization: Bearer $LOQUENT_API_KEY"':""} \\
  -H "content-type: application/json" \\
  -d '${n.replaceAll("'","'\\''")}'`}function j(o,t,r){return`from openai import OpenAI

client = OpenAI(base_url="${o}", api_key=${r?'os.environ["LOQUENT_API_KEY"]':'"none"'})
stream = client.chat.completions.create(
    model=${JSON.stringify(t)},
    messages=[{"role": "user", "content": "Hello!"}],
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)`.replace(/^/,r?`import os
`:"")}function ee(o,t,r){return`import { streamChat } from "@loquent/client";

const answer = streamChat({
  url: "${o}/chat/completions",${r?`
  apiKey: process.env.LOQUENT_API_KEY,`:""}
  body: { model: ${JSON.stringify(t)}, messages: [{ role: "user", content: "Hello!" }] },
});
for await (const delta of answer) {
  if (delta.kind === "text") process.stdout.write(delta.text);
}`}function F(){let o=te(),t=()=>{L(),i()};return e(p,{title:"Continue on another device",onClose:i,children:o===null?e("p",{children:"The answer is complete, or has not begun: there is nothing to continue."}):e("div",{class:"device",children:[y()?e(oe,{}):e(re,{text:o}),e("p",{children:[y()?"Until then, another browser on this machine can open the link. It ":"Scan this, or open the link. The other device ","reads along from the beginning; both show the whole answer."]}),location.protocol==="http:"&&e("p",{class:"faint",children:["Over plain http the other device reads an event stream, which loss holds up. ",e(I,{text:P})]}),e(l,{text:o,label:"Copy the link"}),e("p",{class:"faint",children:"Whoever has the link can read this one answer, and stop it."}),e("button",{type:"button",onClick:t,children:"Hand it over, and stop reading here"})]})})}function oe(){return e("p",{class:"notice",children:["This page is open as ",e("code",{children:location.hostname}),", which on another device means that device. Start the server with"," ",e("code",{children:"--host 0.0.0.0"})," and an API key, and open the page under this machine’s address in the network."]})}function te(){let o=M.value.get(v.value.id)?.answer?.reference??null,t=S(v.value).findLast(({message:r})=>r.role==="user");return o&&q({reference:o,question:t?.message.text??""})}function re({text:o}){let t=m(null);return c(()=>{import("./dist-I2K374MK.js").then(({encode:r})=>{let{data:n,size:a}=r(o,{ecc:"L",border:1}),s=n.flatMap((u,B)=>u.flatMap((Q,G)=>Q?[`M${G} ${B}h1v1h-1z`]:[]));t.value={size:a,path:s.join("")}})},[o]),e("svg",{class:"qr",viewBox:`0 0 ${t.value?.size??1} ${t.value?.size??1}`,role:"img","aria-label":"QR code of the link","shape-rendering":"crispEdges",children:e("path",{d:t.value?.path??""})})}var W=`/* The dialogs of the chat page. Loaded with the first of them, so that a first visit loads less. */

.snippet {
  display: grid;
  grid-template-columns: minmax(0, 1fr) auto;
  align-items: start;
  padding: 0.3rem 0.3rem 0.3rem 0;
  border: 1px solid var(--line);
  border-radius: 0.7rem;
  background: var(--side);
}

.snippet pre {
  overflow-x: auto;
  margin: 0;
  padding: 0.35rem 0.5rem 0.35rem 1rem;
  border-radius: 0.6rem;
  font: 0.85rem/1.55 var(--mono);
}

.models {
  display: grid;
  gap: 0.6rem;
  margin: 0;
  padding: 0;
  list-style: none;
}

.models li {
  display: grid;
  grid-template-columns: minmax(0, 1fr) auto;
  gap: 0.1rem 0.75rem;
  align-items: center;
}

.models .name {
  overflow-wrap: anywhere;
  font-weight: 550;
}

.models :is(.faint, progress) {
  grid-column: 1;
}

.models progress {
  width: 100%;
  accent-color: var(--accent);
}

.models button {
  grid-area: 1 / 2 / span 2;
}

.refusal {
  color: var(--danger);
  font-size: 0.9rem;
}

.refusal:empty {
  display: none;
}

.tabs {
  display: flex;
  gap: 0.35rem;
}

.tabs button[aria-pressed="true"] {
  border-color: var(--accent);
  color: var(--accent);
}

.shortcuts {
  display: grid;
  gap: 0.6rem;
  margin: 0;
}

.shortcuts div {
  display: grid;
  grid-template-columns: 11rem 1fr;
  gap: 0.75rem;
}

.shortcuts dd {
  margin: 0;
}

kbd {
  padding: 0.1rem 0.45rem;
  border: 1px solid var(--line);
  border-bottom-width: 2px;
  border-radius: 0.35rem;
  font: 0.8rem var(--mono);
}

.device {
  display: grid;
  grid-template-columns: minmax(0, 1fr);
  justify-items: center;
  gap: 0.9rem;
}

.qr {
  width: min(15rem, 100%);
  padding: 0.75rem;
  border-radius: 0.75rem;
  background: #ffffff;
}

.qr path {
  fill: #000000;
}

.device .snippet {
  width: 100%;
}

@media (max-width: 640px) {
  .shortcuts div {
    grid-template-columns: 1fr;
    gap: 0.1rem;
  }
}
`;var d=x({is:"none"}),ae=300;async function _(o,t){d.value={is:"asking",model:t},d.value=await se(o,t),h()}async function se(o,t){let r={"content-type":"application/json",...O()};try{let{ok:n,status:a,body:s}=await E(`v1/models/${o}`,{method:"POST",headers:r,body:JSON.stringify({model:t})});return n?{is:"none"}:{is:"refused",why:ie(a,s),isForAll:a===401||a===403}}catch{return{is:"refused",why:"The server does not answer. Check that it runs and that you are online.",isForAll:!1}}}function ie(o,t){let{message:r}=(t??{}).error??{};return o===401?"This server needs an API key to load and unload models: enter that of an administrator in Settings.":typeof r=="string"?r.slice(0,ae):`The server refused this with status ${o}.`}function z({presence:o,loadedShare:t}){switch(o){case"loaded":return"loaded";case"loading":return t===null?"loading":`loading, ${Math.floor(t*100)} %`;case"unloading":return"being unloaded, once its answers have ended";case"failed":return"could not be loaded: the server’s log says why";case"unloaded":return"not loaded; a question to it loads it";case null:return""}}function J({presence:o},t){return o==="unloaded"||o==="failed"?"load":o==="loaded"&&!t?"unload":null}function K(){let o=f.value.is==="ready"?f.value.models:[];return c(()=>{d.value={is:"none"},h()},[]),e(p,{title:"Models",onClose:i,children:[o.length>0&&e("ul",{class:"models","aria-label":"Models of this server",children:o.map(t=>e(le,{model:t,isOnly:o.length===1},t.id))}),e("p",{class:"refusal",role:"status",children:d.value.is==="refused"&&d.value.why}),e(de,{})]})}function le({model:o,isOnly:t}){let{id:r,presence:n,loadedShare:a}=o,s=J(o,t),u=d.value.is==="asking"||d.value.is==="refused"&&d.value.isForAll;return e("li",{children:[e("span",{class:"name",children:r}),e("span",{class:"faint",children:z(o)}),n==="loading"&&e("progress",{"aria-label":`${r}: loaded part`,max:1,...a!==null&&{value:a}}),s!==null&&e("button",{type:"button",disabled:u,"aria-label":`${s==="load"?"Load":"Unload"} ${r}`,onClick:()=>{_(s,r)},children:s==="load"?"Load":"Unload"})]})}function de(){return e(b,{children:[e("p",{children:[D()&&`${C} only knows about streaming. `,"To serve a model that answers questions of every kind, run this on the server’s machine. It downloads the model from Hugging Face once, and goes on where a download was broken off:"]}),e(l,{text:"loquent serve qwen3:0.6b"}),e("p",{children:"For the models in a folder, which can then be loaded and unloaded here:"}),e(l,{text:"loquent serve --models-dir path/to/folder"}),e("p",{children:"In front of a server that you have already, such as vLLM, llama-server or Ollama:"}),e(l,{text:"loquent serve --upstream http://localhost:11434"}),e("p",{class:"faint",children:e("a",{href:"docs/models",children:"Names of models, and where they are kept"})})]})}var pe=[["Enter","Send"],["Shift + Enter","New line"],["↑","Edit the last question (in an empty prompt)"],["Escape","Stop the answer, or close a panel"],["Ctrl/⌘ + Shift + O","New chat"],["Ctrl/⌘ + K","Search conversations"],["/","Go to the prompt"],["?","This list"]];function R(){return e(p,{title:"Keyboard shortcuts",onClose:i,children:e("dl",{class:"shortcuts",children:pe.map(([o,t])=>e("div",{children:[e("dt",{children:e("kbd",{children:o})}),e("dd",{children:t})]},o))})})}V(W);function io(){switch($.value){case"connect":return e(H,{});case"models":return e(K,{});case"shortcuts":return e(R,{});case"device":return e(F,{});case"none":return null}}export{io as Dialogues};
