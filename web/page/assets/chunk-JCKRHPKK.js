import{a as o}from"./chunk-ITQXCZ26.js";var e=o(""),r=o([]);export{e as a,r as b};
