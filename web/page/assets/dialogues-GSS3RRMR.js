import{a as Q,c as $}from"./chunk-72TQALHL.js";import{d as B,f as u}from"./chunk-ROGPPYWF.js";import{D as z,d as V,r as N,s as J}from"./chunk-WJJX7JZ4.js";import{g as U,h as T,i as F,k as H,l as v,m as h,o as g}from"./chunk-QFE2ZRCK.js";import{a as b,c as w,i as D,j as q,n as R,o as W}from"./chunk-KHEEUZC5.js";import"./chunk-J3TXAQ4B.js";import{a as K,d as G}from"./chunk-FXCU7NM7.js";import{a as I}from"./chunk-4PC5ZWBK.js";import"./chunk-KNIVK2F3.js";import"./chunk-FVHBRY3X.js";import"./chunk-BWZWJJRS.js";import"./chunk-E3BQTMXS.js";import{c as f,e as L,g as _}from"./chunk-CEAMIZB5.js";import{d as P,g as o}from"./chunk-D7T4XN55.js";function m({title:e,onClose:t,children:n}){let r=L(null),a=_();return f(()=>r.current?.showModal(),[]),o("dialog",{ref:r,"aria-labelledby":a,onClose:t,onClick:l=>{l.target===r.current&&t()},children:o("div",{class:"dialog-body",children:[o("header",{children:[o("h2",{id:a,children:e}),o(R,{icon:"close",label:"Close",onClick:t})]}),n]})})}function c({text:e,label:t}){return o("div",{class:"snippet",children:[o("pre",{tabIndex:0,children:e}),o(W,{text:()=>e,...t!==void 0&&{label:t}})]})}var ge=["curl","Python","JavaScript"];function Y(){let e=w("curl");return o(m,{title:"Connect an app",onClose:u,children:[o("p",{children:"Any program that speaks OpenAI’s API can use this server. Give it this base URL:"}),o(c,{text:X()}),o("p",{class:"faint",children:[D.value.apiKey===""?"Without a key on the server, any text will do as the API key.":"Use the API key of this server."," ","Anthropic’s API is under the same address without ",o("code",{children:"/v1"}),"."]}),o("div",{class:"tabs",role:"group","aria-label":"Language",children:ge.map(t=>o("button",{type:"button","aria-pressed":t===e.value,onClick:()=>e.value=t,children:t},t))}),o(c,{text:ye(e.value)})]})}function X(){return new URL("v1",document.baseURI).href}function ye(e){let[t,n]=[X(),F()?.id??"default"],r=D.value.apiKey!=="";switch(e){case"curl":return we(t,n,r);case"Python":return ve(t,n,r);case"JavaScript":return be(t,n,r)}}function we(e,t,n){let r=JSON.stringify({model:t,stream:!0,messages:[{role:"user",content:"Hello!"}]});return`curl -N ${e}/chat/completions${n?' -H "authorization: Bearer $LOQUENT_API_KEY"':""} \\
  -H "content-type: application/json" \\
  -d '${r.replaceAll("'","'\\''")}'`}function ve(e,t,n){return`from openai import OpenAI

client = OpenAI(base_url="${e}", api_key=${n?'os.environ["LOQUENT_API_KEY"]':'"none"'})
stream = client.chat.completions.create(
    model=${JSON.stringify(t)},
    messages=[{"role": "user", "content": "Hello!"}],
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)`.replace(/^/,n?`import os
`:"")}function be(e,t,n){return`import { streamChat } from "@loquent/client";

const answer = streamChat({
  url: "${e}/chat/completions",${n?`
  apiKey: process.env.LOQUENT_API_KEY,`:""}
  body: { model: ${JSON.stringify(t)}, messages: [{ role: "user", content: "Hello!" }] },
});
for await (const delta of answer) {
  if (delta.kind === "text") process.stdout.write(delta.text);
}`}function Z(){let e=De(),t=()=>{z(),u()};return o(m,{title:"Continue on another device",onClose:u,children:e===null?o("p",{children:"The answer is complete, or has not begun: there is nothing to continue."}):o("div",{class:"device",children:[$()?o(ke,{}):o(Te,{text:e}),o("p",{children:[$()?"Until then, another browser on this machine can open the link. It ":"Scan this, or open the link. The other device ","reads along from the beginning; both show the whole answer."]}),location.protocol==="http:"&&o("p",{class:"faint",children:["Over plain http the other device reads an event stream, which loss holds up. ",o(K,{text:G})]}),location.protocol==="https:"&&o(xe,{}),o(c,{text:e,label:"Copy the link"}),o("p",{class:"faint",children:"Whoever has the link can read this one answer, and stop it."}),o("button",{type:"button",onClick:t,children:"Hand it over, and stop reading here"})]})})}function ke(){return o("p",{class:"notice",children:["This page is open as ",o("code",{children:location.hostname}),", which on another device means that device. Start the server with"," ",o("code",{children:"--host 0.0.0.0"})," and an API key, and open the page under this machine’s address in the network."]})}function xe(){let e=w("");return f(()=>{h(".well-known/loquent").then(({body:t})=>e.value=Se(t),()=>{})},[]),e.value===""?null:o("p",{class:"faint",children:["The other browser warns that it does not know this server’s certificate. Before you go on there, compare the certificate’s SHA-256:"," ",o("code",{children:e.value})]})}function Se(e){let{https_certificate_sha256:t}=e??{};return typeof t!="string"||!/^[0-9a-f]{64}$/.test(t)?"":t.toUpperCase().replace(/..(?!$)/g,"$&:")}function De(){let e=J.value.get(N.value.id)?.answer?.reference??null,t=V(N.value).findLast(({message:n})=>n.role==="user");return e&&Q({reference:e,question:t?.message.text??""})}function Te({text:e}){let t=w(null);return f(()=>{import("./dist-I2K374MK.js").then(({encode:n})=>{let{data:r,size:a}=n(e,{ecc:"L",border:1}),s=r.flatMap((l,d)=>l.flatMap((y,he)=>y?[`M${he} ${d}h1v1h-1z`]:[]));t.value={size:a,path:s.join("")}})},[e]),o("svg",{class:"qr",viewBox:`0 0 ${t.value?.size??1} ${t.value?.size??1}`,role:"img","aria-label":"QR code of the link","shape-rendering":"crispEdges",children:o("path",{d:t.value?.path??""})})}var j=`/* The dialogs of the chat page. Loaded with the first of them, so that a first visit loads less. */

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

:is(.models, .download) progress {
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

.download {
  display: grid;
  grid-template-columns: minmax(0, 1fr) auto;
  gap: 0.4rem 0.75rem;
  align-items: center;
}

.download :is(label, p, .running) {
  grid-column: 1 / -1;
  margin: 0;
}

.download .running {
  display: grid;
  grid-template-columns: subgrid;
}

.download .running .faint {
  grid-column: 1 / -1;
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

.device code {
  overflow-wrap: anywhere;
}

@media (max-width: 640px) {
  .shortcuts div {
    grid-template-columns: 1fr;
    gap: 0.1rem;
  }
}
`;var p=b({is:"none"}),C="The server does not answer. Check that it runs and that you are online.",$e=300;async function ee(e,t){p.value={is:"asking",model:t},p.value=await Ce(e,t),g()}async function Ce(e,t){let n={"content-type":"application/json",...v()};try{let{ok:r,status:a,body:s}=await h(`v1/models/${e}`,{method:"POST",headers:n,body:JSON.stringify({model:t})});return r?{is:"none"}:{is:"refused",why:Ee(a,s),isForAll:a===401||a===403}}catch{return{is:"refused",why:C,isForAll:!1}}}function Ee(e,t){return e===401?"This server needs an API key to load and unload models: enter that of an administrator in Settings.":E(e,t,$e)}function E(e,t,n){let{message:r}=(t??{}).error??{};return typeof r=="string"?r.slice(0,n):`The server refused this with status ${e}.`}function oe({presence:e,loadedShare:t}){switch(e){case"loaded":return"loaded";case"loading":return t===null?"loading":`loading, ${Math.floor(t*100)} %`;case"permanent":return"always loaded";case"unloading":return"being unloaded, once its answers have ended";case"failed":return"could not be loaded: the server’s log says why";case"unloaded":return"not loaded; a question to it loads it";case null:return""}}function te({presence:e}){return e==="unloaded"||e==="failed"?"load":e==="loaded"?"unload":null}var i=b({is:"none"}),S="api/v1/models/download",Oe=["downloading","completed","paused","failed"],Ae=500,re=500,O=null;async function ae(){try{let{ok:e,body:t}=await h(S,{headers:v()}),{data:n}=t??{};e&&Array.isArray(n)?de(ue(n[0])):i.value={is:"none"}}catch{i.value={is:"none"}}}async function se(e){await A(S,"POST",JSON.stringify({model:e}))}async function ie(e){await A(`${S}/status/${encodeURIComponent(e)}`,"DELETE")}async function Me(e){await A(`${S}/status/${encodeURIComponent(e)}`,"GET")}async function A(e,t,n){let r={"content-type":"application/json",...v()};try{let{ok:a,status:s,body:l}=await h(e,{method:t,headers:r,...n!==void 0&&{body:n}}),d=ue(l);a&&d!==null?de(d):ne(E(s,l,re),s!==404)}catch{ne(C)}}function ne(e,t=!0){let n=i.peek(),r=n.is==="offered"&&t?n.latest:null;i.value={is:"offered",latest:r,refusal:e},le(r)}function le(e){O!==null&&clearTimeout(O),O=e?.status==="downloading"?setTimeout(()=>{Me(e.id)},Ae):null}function de(e){let t=i.peek(),n=t.is==="offered"&&t.latest?.status==="downloading"&&t.latest.id===e?.id;i.value={is:"offered",latest:e,refusal:""},le(e),n&&e?.model&&(q({model:e.model}),g())}function ue(e){let t=e??{},[n,r]=[x(t.job_id),x(t.requested)],a=Oe.find(y=>y===t.status);if(n===null||r===null||a===void 0)return null;let[s,l,d]=[t.downloaded_bytes,t.total_size_bytes,t.bytes_per_second].map(Le);return{id:n,asked:r,status:a,doneBytes:s,totalBytes:l,bytesPerSecond:d,model:x(t.model),why:x(t.error)}}function M({asked:e,status:t,doneBytes:n,totalBytes:r,bytesPerSecond:a,model:s,why:l}){switch(t){case"downloading":{if(r===0)return"looking for it";let d=a>0?(r-n)/a:null,y=d===null||d<1?"":`, ${Pe(d)} left`;return`${k(n)} of ${k(r)} MB${y}`}case"completed":return`${s??e} is on the server. Your next question goes to it.`;case"paused":return`stopped at ${k(n)} of ${k(r)} MB; the next download of ${e} goes on there`;case"failed":return l??"It failed. The server’s log says why."}}function Pe(e){return e<90?`${Math.ceil(e)} s`:e<5400?`${Math.round(e/60)} min`:`${Math.round(e/3600)} h`}function k(e){return(e/1e6).toFixed(e<1e8?1:0)}function x(e){return typeof e=="string"&&e!==""?e.slice(0,re):null}function Le(e){return typeof e=="number"&&Number.isFinite(e)&&e>0?e:0}var ce="qwen3:0.6b";function pe(){if(i.value.is==="none")return null;let{latest:e,refusal:t}=i.value,n=e?.status==="downloading";return o("form",{class:"download",onSubmit:r=>{r.preventDefault();let a=new FormData(r.currentTarget).get("model");se(typeof a=="string"&&a.trim()!==""?a.trim():ce)},children:[o("label",{for:"download-model",children:"Download a model from Hugging Face"}),o("input",{id:"download-model",name:"model",placeholder:ce,disabled:n,autocomplete:"off",spellcheck:!1}),o("button",{type:"submit",disabled:n,children:"Download"}),e!==null&&o(_e,{latest:e}),o("p",{class:"refusal",role:"status",children:t})]})}function _e({latest:e}){let{id:t,asked:n,status:r,doneBytes:a,totalBytes:s}=e;return r!=="downloading"?o("p",{class:r==="failed"?"refusal":"faint",children:M(e)}):o("div",{class:"running",children:[o("span",{class:"faint",children:[n,": ",M(e)]}),o("progress",{"aria-label":`Downloaded part of ${n}`,max:1,...s>0&&{value:a/s}}),o("button",{type:"button",onClick:()=>{ie(t)},children:"Stop"})]})}function me(){let e=T.value.is==="ready"?T.value.models:[];return f(()=>{p.value={is:"none"},g(),ae()},[]),o(m,{title:"Models",onClose:u,children:[e.length>0&&o("ul",{class:"models","aria-label":"Models of this server",children:e.map(t=>o(Ie,{model:t},t.id))}),o("p",{class:"refusal",role:"status",children:p.value.is==="refused"&&p.value.why}),o(pe,{}),o(Ve,{})]})}function Ie({model:e}){let{id:t,presence:n,loadedShare:r}=e,a=te(e),s=p.value.is==="asking"||p.value.is==="refused"&&p.value.isForAll;return o("li",{children:[o("span",{class:"name",children:t}),o("span",{class:"faint",children:oe(e)}),n==="loading"&&o("progress",{"aria-label":`${t}: loaded part`,max:1,...r!==null&&{value:r}}),a!==null&&o("button",{type:"button",disabled:s,"aria-label":`${a==="load"?"Load":"Unload"} ${t}`,onClick:()=>{ee(a,t)},children:a==="load"?"Load":"Unload"})]})}function Ve(){return o(P,{children:[o("p",{children:[H()&&`${U} only knows about streaming. `,i.value.is==="offered"?"The server’s next start serves the models that were downloaded here, too. To start it with one of them alone, run this on the server’s machine:":"To serve a model that answers questions of every kind, run this on the server’s machine. It downloads the model from Hugging Face once, and goes on where a download was broken off:"]}),o(c,{text:"loquent serve qwen3:0.6b"}),o("p",{children:"For the models in a folder, which can then be loaded and unloaded here:"}),o(c,{text:"loquent serve --models-dir path/to/folder"}),o("p",{children:"In front of a server that you have already, such as vLLM, llama-server or Ollama:"}),o(c,{text:"loquent serve --upstream http://localhost:11434"}),o("p",{class:"faint",children:o("a",{href:"docs/models",children:"Names of models, and where they are kept"})})]})}var qe=[["Enter","Send"],["Shift + Enter","New line"],["↑","Edit the last question (in an empty prompt)"],["Escape","Stop the answer, or close a panel"],["Ctrl/⌘ + Shift + O","New chat"],["Ctrl/⌘ + K","Search conversations"],["/","Go to the prompt"],["?","This list"]];function fe(){return o(m,{title:"Keyboard shortcuts",onClose:u,children:o("dl",{class:"shortcuts",children:qe.map(([e,t])=>o("div",{children:[o("dt",{children:o("kbd",{children:e})}),o("dd",{children:t})]},e))})})}I(j);function Ko(){switch(B.value){case"connect":return o(Y,{});case"models":return o(me,{});case"shortcuts":return o(fe,{});case"device":return o(Z,{});case"none":return null}}export{Ko as Dialogues};
